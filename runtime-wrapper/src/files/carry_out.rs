// SPDX-License-Identifier: Apache-2.0
//! Carrying out a [`Plan`]: the only place that changes the files of a root that is in use.
//!
//! Nothing of the container may run meanwhile. Everything is reached from the root's
//! descriptor, name by name: no link is followed, and nothing that is mounted is entered.

use std::{collections::HashSet, os::fd::BorrowedFd};

use crab_store::ObjectReader;
use rustix::{
    fs::{AtFlags, unlinkat},
    io::Errno,
};
use thiserror::Error;

use super::{
    index::Index,
    plan::{Plan, PlanError, PlanLimits, Wanted},
    restore::{Placer, RestoreError},
    scan::Scanner,
    walk::{WalkError, shown},
    xattr::Rules,
};

/// Why a root is not as it was before.
#[derive(Debug, Error)]
pub enum PutBackError {
    /// It could not be looked at.
    #[error(transparent)]
    Walk(#[from] WalkError),
    /// It cannot be done in place.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Something could not be done.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// All was done, and it is another nevertheless.
    #[error("{path} is not as it was")]
    Differs {
        /// The first such path.
        path: String,
    },
}

impl Plan {
    /// Does what is planned, in `view`: for an overlay its merged view, for any other root
    /// the root itself.
    ///
    /// # Errors
    /// When something could not be done. What was done is left: a plan from what is there then
    /// back to what was there before undoes it.
    pub fn carry_out(
        &self,
        scanner: &Scanner,
        view: BorrowedFd<'_>,
        reader: &ObjectReader,
    ) -> Result<(), RestoreError> {
        let mut place = Placer::new(view, reader, Rules::Plain);
        for (path, is_dir) in &self.removals {
            let flags = if *is_dir {
                AtFlags::REMOVEDIR
            } else {
                AtFlags::empty()
            };
            let (dir, name) = place.parent(path)?;
            match unlinkat(dir, name, flags) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(RestoreError::io("remove", path)(errno)),
            }
        }
        let mut lowers = scanner
            .lowers()
            .map_err(RestoreError::io("open the layers of", b""))?;
        for Wanted { entry, copied } in &self.new {
            if *copied {
                let failed = || RestoreError::io("find what is below", &entry.path);
                let lower = lowers.find(&entry.path).map_err(failed())?;
                let lower = lower.ok_or_else(|| failed()(Errno::NOENT))?;
                place.copy(entry, &lower.fd)?;
            } else {
                place.create(entry)?;
            }
        }
        for entry in &self.amended {
            place.amend(entry)?;
        }
        place.finish(self.directories.iter())
    }
}

/// Undoes what of a plan was carried out: makes the root what its index, from before, says.
/// Gives the index as it is then.
///
/// # Errors
/// When it is not as it was.
pub fn put_back(
    scanner: &Scanner,
    view: BorrowedFd<'_>,
    before: &Index,
    reader: &ObjectReader,
) -> Result<Index, PutBackError> {
    let now = scanner.scan(before, &HashSet::new())?.into_live();
    let plan = Plan::of(scanner, &now, &before.tree(), PlanLimits::NONE)?;
    plan.carry_out(scanner, view, reader)?;
    let scan = scanner.scan(before, &HashSet::new())?;
    let differs = scan.changes().first().map(|change| shown(&change.path));
    match scan.into_index() {
        Some(index) => Ok(index),
        None => Err(PutBackError::Differs {
            path: differs.unwrap_or_default(),
        }),
    }
}
