// SPDX-License-Identifier: Apache-2.0

//! What programs hold on to, and still hold when they come back: in a live sandbox that is
//! rolled back, and in one that was killed. What CRIU cannot hold is said beforehand, and
//! on the checkpoint.

mod dry_run;
mod held;
mod holder;
