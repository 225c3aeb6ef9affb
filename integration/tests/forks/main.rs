// SPDX-License-Identifier: Apache-2.0

//! Running copies of a sandbox: `crab fork`, `crab tree`.

mod copies;
mod failing;
mod rollout;
mod shared;
mod spares;
