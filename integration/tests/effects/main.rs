// SPDX-License-Identifier: Apache-2.0

//! What a turn is said to have done: what does not matter by rule, and what `crab show`
//! tells.

mod compared;
mod ignored;
mod shown;
