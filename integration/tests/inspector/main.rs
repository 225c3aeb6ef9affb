// SPDX-License-Identifier: Apache-2.0

//! What the inspector says of turns, beside what is so.

mod random;
