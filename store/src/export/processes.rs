// SPDX-License-Identifier: Apache-2.0

//! CRIU's images, each as one file: pages that lie over those of an earlier image (pages.rs) are put
//! into their places.

use std::collections::BTreeMap;

use crate::{
    digest::Digest,
    error::ReadError,
    image::{ImageFile, ProcessImage},
    reader::ObjectReader,
    tree::Segment,
};

/// A file of an image directory, as CRIU sees it.
pub(super) struct Flat<'a> {
    base: &'a ImageFile,
    /// What lies over it, in this order.
    over: Vec<&'a ImageFile>,
}

/// The files of an image.
pub(super) fn flatten(image: &ProcessImage) -> Vec<Flat<'_>> {
    let mut files: Vec<Flat<'_>> = Vec::new();
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    for file in &image.files {
        match known.get(file.name.as_str()) {
            Some(at) => files[*at].over.push(file),
            None => {
                known.insert(&file.name, files.len());
                files.push(Flat {
                    base: file,
                    over: Vec::new(),
                });
            }
        }
    }
    files
}

impl<'a> Flat<'a> {
    pub(super) fn name(&self) -> &'a str {
        &self.base.name
    }

    pub(super) fn size(&self) -> u64 {
        self.base.size
    }

    /// Where its bytes are, by what it was cut into. What lies over that is within it.
    pub(super) fn segments(&self) -> &'a [Segment] {
        &self.base.content
    }

    /// The bytes of one of those segments.
    pub(super) fn get(
        &self,
        reader: &ObjectReader,
        segment: &Segment,
    ) -> Result<Vec<u8>, ReadError> {
        let mut bytes = reader.get(segment.digest)?;
        let (start, end) = (segment.offset, segment.offset + u64::from(segment.len));
        for change in self
            .over
            .iter()
            .flat_map(|file| within(&file.content, start, end))
        {
            let at = (change.offset - start) as usize;
            let place = bytes.get_mut(at..at + change.len as usize);
            let new = reader.get(change.digest)?;
            match place {
                Some(place) if place.len() == new.len() => place.copy_from_slice(&new),
                _ => {
                    return Err(ReadError::Malformed {
                        digest: change.digest,
                        why: format!("it does not lie within what is below it in {}", self.name()),
                    });
                }
            }
        }
        Ok(bytes)
    }

    /// The same file, with all in one layer.
    pub(super) fn told(&self, digests: Vec<Digest>) -> ImageFile {
        let segments = self.base.content.iter().zip(digests);
        ImageFile {
            name: self.base.name.clone(),
            size: self.base.size,
            content: segments
                .map(|(segment, digest)| Segment { digest, ..*segment })
                .collect(),
        }
    }
}

/// Those segments that begin between two places.
fn within(segments: &[Segment], start: u64, end: u64) -> &[Segment] {
    let from = segments.partition_point(|segment| segment.offset < start);
    let to = segments.partition_point(|segment| segment.offset < end);
    &segments[from..to]
}
