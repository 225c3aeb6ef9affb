// SPDX-License-Identifier: Apache-2.0

//! Many of a kind, so many at a time.

use std::{
    sync::{Mutex, PoisonError},
    thread,
};

use anyhow::Result;

/// Does something with each, so many at a time; gives what came of it, in their order.
pub(crate) fn some_at_a_time<'a, T: Sync, R: Send>(
    count: usize,
    items: &'a [T],
    act: impl Fn(&'a T) -> Result<R> + Sync,
) -> Vec<Result<R>> {
    let next = Mutex::new(0..items.len());
    let results = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..count.min(items.len()) {
            scope.spawn(|| {
                loop {
                    let at = next.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some(at) = at else { return };
                    let result = act(&items[at]);
                    let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                    results.push((at, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_of_each_is_in_their_order() {
        let numbers: Vec<u64> = (0..50).collect();
        let done = some_at_a_time(4, &numbers, |number| {
            anyhow::ensure!(*number != 7, "seven");
            Ok(number * 2)
        });
        assert_eq!(done.len(), 50);
        for (number, result) in done.into_iter().enumerate() {
            match result {
                Ok(double) => assert_eq!(double, 2 * number as u64),
                Err(_) => assert_eq!(number, 7),
            }
        }
    }
}
