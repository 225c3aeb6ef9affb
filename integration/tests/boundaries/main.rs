// SPDX-License-Identifier: Apache-2.0

//! Where turns end, for the ways in which agents drive a sandbox.

mod driving;
mod execs;
mod hints;
mod stdin;
