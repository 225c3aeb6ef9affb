// SPDX-License-Identifier: Apache-2.0
//! Where a shim hears of points at which it shall die, or a step fail (see [`crab_fault`]): in builds
//! with debug assertions, and where the environment wants it.

use std::{env, path::Path};

/// The file in the run directory that names them.
const FILE: &str = "fail-at";
/// The variable with which any build listens.
const VARIABLE: &str = "CRAB_FAULT_POINTS";

/// From now on points can be asked for.
pub(crate) fn listen(run_dir: &Path) {
    if cfg!(debug_assertions) || env::var_os(VARIABLE).is_some() {
        crab_fault::listen(run_dir.join(FILE));
    }
}
