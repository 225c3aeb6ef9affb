// SPDX-License-Identifier: Apache-2.0

//! A limit for the memory that lists from elsewhere take while they are read.
//!
//! What lists of a tree or an image say on disk is a fraction of what they take in memory: an entry
//! is eight bytes there at least, and more than a hundred here. So each element is charged
//! before the next one is read. Without a limit, as for what this store wrote itself, nothing is.

use std::{cell::Cell, collections::BTreeMap, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};

thread_local! {
    /// How many bytes may still be taken; nothing is no limit.
    static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// What is made ready for a list whose length is only said.
const AHEAD: usize = 64 << 10;

/// Reads something that may take so many bytes in lists; nothing if it takes more.
pub(crate) fn within<T>(bytes: u64, read: impl FnOnce() -> T) -> Option<T> {
    /// Ends the limit, also after a panic.
    struct Limit;
    impl Drop for Limit {
        fn drop(&mut self) {
            LEFT.set(None);
        }
    }
    // One more, so that what is spent exactly is told from what is exceeded.
    LEFT.set(Some(bytes.saturating_add(1)));
    let limit = Limit;
    let done = read();
    let fits = LEFT.get() != Some(0);
    drop(limit);
    fits.then_some(done)
}

/// Charges an element.
fn spend<E: Error>(bytes: usize) -> Result<(), E> {
    let Some(left) = LEFT.get() else {
        return Ok(());
    };
    match left.checked_sub(bytes as u64) {
        Some(left) if left > 0 => {
            LEFT.set(Some(left));
            Ok(())
        }
        _ => {
            LEFT.set(Some(0));
            Err(E::custom("it takes too much memory"))
        }
    }
}

/// What an element of a list is charged.
pub(crate) const fn price<T>() -> u64 {
    size_of::<T>() as u64
}

/// Reads a list within the limit.
pub(crate) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    struct List<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Vec<T>, A::Error> {
            let ahead = AHEAD / size_of::<T>().max(1);
            let mut list = Vec::with_capacity(from.size_hint().unwrap_or(0).min(ahead));
            while let Some(element) = from.next_element()? {
                spend(size_of::<T>())?;
                list.push(element);
            }
            Ok(list)
        }
    }
    from.deserialize_seq(List(PhantomData))
}

/// Reads a map within the limit.
pub(crate) fn map<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    struct Map;
    impl<'de> Visitor<'de> for Map {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
            let mut map = BTreeMap::new();
            while let Some((key, value)) = from.next_entry()? {
                spend(size_of::<(String, String)>())?;
                map.insert(key, value);
            }
            Ok(map)
        }
    }
    from.deserialize_map(Map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Lists {
        #[serde(deserialize_with = "list")]
        lists: Vec<Inner>,
    }

    #[derive(Deserialize)]
    struct Inner {
        #[serde(deserialize_with = "list")]
        list: Vec<u64>,
    }

    #[test]
    fn what_takes_more_than_it_may_is_not_read_to_its_end() {
        let bytes = postcard::to_allocvec(&vec![vec![1u64; 10]; 3]).unwrap();
        let read = || postcard::from_bytes::<Lists>(&bytes);
        let price = 3 * price::<Inner>() + 30 * 8;
        assert_eq!(
            within(price, read).unwrap().unwrap().lists[2].list.len(),
            10
        );
        assert!(within(price - 1, read).is_none());
        // Without a limit afterwards.
        assert!(read().is_ok());
        // A length that is only said takes nothing.
        let lie = [vec![255; 9], vec![1]].concat();
        assert!(postcard::from_bytes::<Lists>(&lie).is_err());
    }
}
