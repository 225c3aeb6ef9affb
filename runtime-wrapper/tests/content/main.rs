// SPDX-License-Identifier: Apache-2.0

//! Processes compared by what they hold, with real ones.

mod harness;
mod idle;
mod itself;
mod keep_alive;
mod outside;
