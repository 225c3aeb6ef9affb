// SPDX-License-Identifier: Apache-2.0
//! While a sandbox stands still, nothing can be started in it: it is frozen, or its
//! processes are being exchanged. An exec that waits at the gate then waits on.

use std::sync::{Arc, atomic::Ordering};

use crate::sandbox::Container;

/// The sandbox stands still for as long as this is there.
pub(crate) struct Still(Arc<Container>);

impl Still {
    /// From now on.
    pub(crate) fn stand(container: Arc<Container>) -> Self {
        container.standing_still.store(true, Ordering::SeqCst);
        Self(container)
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        self.0.standing_still.store(false, Ordering::SeqCst);
    }
}
