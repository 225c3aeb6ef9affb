// SPDX-License-Identifier: Apache-2.0
//! File images: what is in a directory tree, what of it changed, and putting
//! it back.
//!
//! ```text
//!  Scanner --scan(Index)--> Scan --stage--> Staged --persist(PackWriter)--> Tree + Index
//!            no reads of      |     copies     |      hash, compress, write
//!            what is as it    |     out of     |      (the sandbox runs again)
//!            was              v     reach      v
//!                          changes           torn? void, again and frozen
//!
//!  Tree --build--> an empty directory    --index_restored--> Index
//!       --apply--> a mounted tmpfs, a root that is no overlay
//!       --verify--> how a live root differs
//!       --plan--carry_out--> a root that is in use, where that can be done
//!       --write_tmpfs_archive--> the tmpfs in a CRIU image directory
//! ```
//!
//! A root is the upper directory of an overlay, a tmpfs mount, or a container's whole root where
//! that is no overlay; each is one file system, and what is mounted on it is never entered. Everything in it is
//! hostile: names are bytes, depth has no limit but memory, nothing is followed,
//! no device or FIFO is opened, and whatever changes underneath makes a capture
//! torn, never wrong.
//!
//! Not in an image: access times, `chattr` flags, project ids, and the
//! bookkeeping attributes listed in `xattr.rs`.

mod apply;
mod beneath;
mod capture;
mod carry_out;
mod change;
mod content;
mod crew;
mod difference;
mod examine;
mod index;
mod lower;
mod narrow;
mod node;
mod plan;
mod remove;
mod restore;
mod scan;
mod shape;
mod survey;
mod tmpfs_tar;
mod walk;
mod xattr;

use crab_store::{Digest, Tree};

pub use apply::apply;
pub use capture::{Captured, PersistError, StageError, Staged, Staging};
pub use carry_out::{PutBackError, put_back};
pub use change::{Change, ChangeKind, FileKind};
pub use difference::{Difference, DifferenceKind, Look, Verified};
pub use index::{Index, IndexError};
pub use narrow::ChangedInodes;
pub use plan::{Plan, PlanError, PlanLimits, Renewed};
pub use remove::remove_tree;
pub use restore::{Durability, RestoreError, build};
pub use scan::{OpenError, Scan, Scanner};
pub use shape::Sort;
pub use tmpfs_tar::write_tmpfs_archive;
pub use walk::WalkError;

/// A digest of all that a tree says. Contents are cut the same way wherever
/// their holes are, so the same files give the same digest.
pub fn digest(tree: &Tree) -> Result<Digest, postcard::Error> {
    postcard::to_allocvec(tree).map(|bytes| Digest::of(&bytes))
}
