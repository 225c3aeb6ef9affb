// SPDX-License-Identifier: Apache-2.0

//! What a checkpoint refers to: every object without which it cannot be read back.

use std::cell::RefCell;

use crate::{
    digest::Digest, error::ReadError, image::ProcessImage, manifest::Manifest, object, tree::Tree,
};

/// An object that a manifest names. What it is made of follows from its digest alone, so
/// that one which was followed once need not be again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Root {
    /// A tree.
    Tree(Digest),
    /// A process image.
    Image(Digest),
    /// Bytes that refer to nothing.
    Spec(Digest),
}

impl Root {
    /// Names every object that it is made of, itself included. `get` reads one.
    pub(crate) fn follow(
        self,
        get: impl Fn(Digest) -> Result<Vec<u8>, ReadError>,
        mut visit: impl FnMut(Digest) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let parts = RefCell::new(Vec::new());
        let get = |digest: Digest| {
            parts.borrow_mut().push(digest);
            get(digest)
        };
        match self {
            Self::Spec(digest) => visit(digest)?,
            Self::Tree(digest) => {
                let tree: Tree = object::decode(digest, &get(digest)?, get)?;
                for segment in tree.segments() {
                    visit(segment.digest)?;
                }
            }
            Self::Image(digest) => {
                let image: ProcessImage = object::decode(digest, &get(digest)?, get)?;
                for segment in image.segments() {
                    visit(segment.digest)?;
                }
            }
        }
        parts.into_inner().into_iter().try_for_each(visit)
    }
}

/// What a manifest names.
pub(crate) fn roots(manifest: &Manifest) -> Vec<Root> {
    let mut roots = vec![Root::Spec(manifest.spec), Root::Tree(manifest.files.upper)];
    let tmpfs = manifest.files.tmpfs.iter();
    roots.extend(tmpfs.map(|tmpfs| Root::Tree(tmpfs.tree)));
    roots.extend(
        manifest
            .processes
            .iter()
            .map(|image| Root::Image(image.digest)),
    );
    roots
}
