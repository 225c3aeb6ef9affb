// SPDX-License-Identifier: Apache-2.0

//! Containers with the annotations of Kubernetes' CRI: those of one pod share a shim,
//! and each is a sandbox of its own.

mod pod;
mod processes;
mod sharing;

use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);
