// SPDX-License-Identifier: Apache-2.0

//! The clients beside `ctr` and `docker`: nerdctl, and Kubernetes' CRI by `crictl`.

mod nerdctl;
mod pods;

use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);
