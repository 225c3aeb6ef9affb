// SPDX-License-Identifier: Apache-2.0

//! What can be configured, by whom, and that a mistake costs no container.

mod annotations;
mod elsewhere;
mod samples;
mod switched_off;

use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);
