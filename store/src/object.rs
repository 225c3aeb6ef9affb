// SPDX-License-Identifier: Apache-2.0

//! Values as objects: trees and process images.
//!
//! ```text
//! kind:u8 version:u8 layout:u8 postcard(value)               layout 0: whole
//! kind:u8 version:u8 layout:u8 postcard(parts: [Segment])    layout 1: the
//!                      postcard(value) is the concatenation of these objects
//! ```

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    digest::Digest,
    error::ReadError,
    image::ProcessImage,
    tree::{Segment, Tree},
};

const VERSION: u8 = 1;
pub(crate) const WHOLE: u8 = 0;
pub(crate) const SPLIT: u8 = 1;
/// Length of a part of a value that is split.
pub(crate) const PART: usize = 8 << 20;
/// Largest value, so that a bad one cannot exhaust memory.
pub(crate) const MAX_VALUE: u64 = 1 << 30;

/// What is stored as an object of its own.
pub(crate) trait Value: Serialize + DeserializeOwned {
    const KIND: u8;
    const NAME: &'static str;

    /// What breaks the type's invariant.
    fn fault(&self) -> Option<String>;
}

impl Value for Tree {
    const KIND: u8 = 1;
    const NAME: &'static str = "tree";

    fn fault(&self) -> Option<String> {
        self.check().err().map(|error| error.to_string())
    }
}

impl Value for ProcessImage {
    const KIND: u8 = 2;
    const NAME: &'static str = "process image";

    fn fault(&self) -> Option<String> {
        ProcessImage::fault(self)
    }
}

pub(crate) fn prefix<T: Value>(layout: u8) -> [u8; 3] {
    [T::KIND, VERSION, layout]
}

/// Decodes a value; `get` fetches the other objects that it is split into.
pub(crate) fn decode<T: Value>(
    digest: Digest,
    bytes: &[u8],
    get: impl Fn(Digest) -> Result<Vec<u8>, ReadError>,
) -> Result<T, ReadError> {
    let malformed = |why: String| ReadError::Malformed {
        digest,
        why: format!("no {}: {why}", T::NAME),
    };
    let Some((&[kind, version, layout], payload)) = bytes.split_first_chunk() else {
        return Err(malformed("it is too short".to_owned()));
    };
    if kind != T::KIND {
        return Err(malformed(format!("it is of kind {kind}")));
    }
    if version > VERSION {
        return Err(malformed(format!(
            "it has version {version}, this version of crab reads up to {VERSION}"
        )));
    }
    let from = |bytes: &[u8]| {
        postcard::from_bytes::<T>(bytes).map_err(|error| malformed(error.to_string()))
    };
    let value = match layout {
        WHOLE => from(payload)?,
        SPLIT => {
            let parts: Vec<Segment> =
                postcard::from_bytes(payload).map_err(|error| malformed(error.to_string()))?;
            let total: u64 = parts.iter().map(|part| u64::from(part.len)).sum();
            if total > MAX_VALUE {
                return Err(malformed(format!("it has {total} bytes")));
            }
            let mut whole = Vec::with_capacity(total as usize);
            for part in parts {
                let bytes = get(part.digest)?;
                // Or it could be of any size, however small it says that it is.
                if bytes.len() != part.len as usize {
                    let why = format!("a part of {} bytes has {}", part.len, bytes.len());
                    return Err(malformed(why));
                }
                whole.extend_from_slice(&bytes);
            }
            from(&whole)?
        }
        layout => return Err(malformed(format!("unknown layout {layout}"))),
    };
    match value.fault() {
        Some(why) => Err(malformed(why)),
        None => Ok(value),
    }
}
