// SPDX-License-Identifier: Apache-2.0
//! The containers of this shim: one, or those of a pod.
//!
//! An id is taken from the moment its Create begins: a second Create is refused, and a
//! Shutdown that comes in between does not end the shim. The map's lock is never held
//! over a call of anything.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{container::StateError, sandbox::Container};

/// The map, shared by the services of one shim.
#[derive(Clone, Default)]
pub(crate) struct Containers {
    all: Arc<Mutex<All>>,
}

#[derive(Default)]
struct All {
    /// Nothing while the container is being created.
    map: HashMap<String, Option<Arc<Container>>>,
    /// The shim was told to go while there was nothing but what is being created: whoever
    /// told so has given that up, and does not tell it again.
    unwanted: bool,
}

/// An id that is taken; given back when dropped, unless [`Self::fill`]ed.
pub(crate) struct Reserved {
    containers: Containers,
    id: String,
}

impl Containers {
    fn lock(&self) -> MutexGuard<'_, All> {
        // No code under this lock can leave a change half made.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A container that is created.
    pub(crate) fn get(&self, id: &str) -> Result<Arc<Container>, StateError> {
        self.lock()
            .map
            .get(id)
            .cloned()
            .flatten()
            .ok_or_else(|| StateError::NotFound {
                what: "container",
                id: id.into(),
            })
    }

    /// The container that `crab` names; an older one names none, and means the only one.
    pub(crate) fn named(&self, id: &str) -> Result<Arc<Container>, StateError> {
        if !id.is_empty() {
            return self.get(id);
        }
        let only = {
            let map = &self.lock().map;
            map.keys().next().filter(|_| map.len() == 1).cloned()
        };
        self.get(&only.unwrap_or_default())
    }

    /// Takes an id for a container that is about to be created.
    pub(crate) fn reserve(&self, id: &str) -> Result<Reserved, StateError> {
        let map = &mut self.lock().map;
        if map.contains_key(id) {
            return Err(StateError::Exists {
                what: "container",
                id: id.into(),
            });
        }
        map.insert(id.into(), None);
        Ok(Reserved {
            containers: self.clone(),
            id: id.into(),
        })
    }

    /// Lets a deleted container go.
    pub(crate) fn remove(&self, id: &str) {
        self.lock().map.remove(id);
    }

    /// Whether a shim that is told to go has nothing to do any more.
    pub(crate) fn may_go(&self) -> bool {
        let mut all = self.lock();
        all.unwanted = all.map.values().all(Option::is_none);
        all.map.is_empty()
    }

    /// Whether it was told to go, and only what was being created has kept it.
    pub(crate) fn should_go(&self) -> bool {
        let all = self.lock();
        all.unwanted && all.map.is_empty()
    }
}

impl Reserved {
    /// The container is created.
    pub(crate) fn fill(self, container: Arc<Container>) {
        self.containers
            .lock()
            .map
            .insert(self.id.clone(), Some(container));
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let map = &mut self.containers.lock().map;
        if let Some(None) = map.get(&self.id) {
            map.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_taken_while_its_container_is_created_and_free_if_that_fails() {
        let containers = Containers::default();
        let reserved = containers.reserve("a").unwrap();
        assert!(containers.reserve("a").is_err());
        assert!(containers.get("a").is_err(), "it is not there yet");
        assert!(!containers.should_go(), "nobody wants it to");
        assert!(!containers.may_go(), "a Shutdown now must not end it");
        drop(reserved);
        assert!(containers.should_go(), "nobody asks again");
        assert!(containers.may_go());
        assert!(containers.reserve("a").is_ok());
    }
}
