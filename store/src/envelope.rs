// SPDX-License-Identifier: Apache-2.0

//! Small JSON files that know what they are and whether they are whole.
//!
//! ```text
//! {"magic":"crab-manifest","version":1,"blake3":"<hex of body>","body":{...}}
//! ```
//!
//! The checksum is over the body's bytes as they stand in the file. `version`
//! goes up when an older reader would misread the body; such a reader refuses.
//! Fields that an older reader may pass over do not raise it.

use std::path::Path;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use crate::{digest::Digest, durable, error::ReadError, text::clip, version};

/// Largest file of this kind.
const MAX_SIZE: u64 = 64 << 20;

/// One kind of file.
pub(crate) struct Envelope {
    pub(crate) magic: &'static str,
    pub(crate) version: u32,
}

#[derive(Serialize, Deserialize)]
struct Outer<'a> {
    magic: String,
    version: u32,
    blake3: Digest,
    #[serde(borrow)]
    body: &'a RawValue,
}

impl Envelope {
    /// The bytes of a file.
    pub(crate) fn seal<T: Serialize + ?Sized>(&self, body: &T) -> serde_json::Result<Vec<u8>> {
        let body = serde_json::value::to_raw_value(body)?;
        let mut bytes = serde_json::to_vec(&Outer {
            magic: self.magic.to_owned(),
            version: self.version,
            blake3: Digest::of(body.get().as_bytes()),
            body: &body,
        })?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// The body of a file, or why it is not to be believed.
    pub(crate) fn open<T: DeserializeOwned>(
        &self,
        path: &Path,
        bytes: &[u8],
    ) -> Result<T, ReadError> {
        let damaged = |why: String| ReadError::Damaged {
            path: path.to_owned(),
            why,
        };
        let outer: Outer<'_> =
            serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        if outer.magic != self.magic {
            return Err(damaged(format!("it is no {}", self.magic)));
        }
        version::check(path, outer.version, self.version)
            .map_err(|error| written_by(error, outer.body))?;
        if Digest::of(outer.body.get().as_bytes()) != outer.blake3 {
            return Err(damaged("its checksum is wrong".to_owned()));
        }
        serde_json::from_str(outer.body.get()).map_err(|error| damaged(error.to_string()))
    }

    /// The same, of a file in which no byte may differ from what [`Self::seal`] wrote, also
    /// where that would read the same.
    pub(crate) fn check<T: DeserializeOwned>(
        &self,
        path: &Path,
        bytes: &[u8],
    ) -> Result<T, ReadError> {
        let body = self.open(path, bytes)?;
        let outer: Result<Outer<'_>, _> = serde_json::from_slice(bytes);
        let sealed = outer.and_then(|outer| self.seal(outer.body));
        // What is written in place is filled up with ends of lines.
        let is_room = |rest: &[u8]| rest.iter().all(|byte| *byte == b'\n');
        if sealed.is_ok_and(|sealed| bytes.strip_prefix(&*sealed).is_some_and(is_room)) {
            return Ok(body);
        }
        Err(ReadError::Damaged {
            path: path.to_owned(),
            why: "its envelope has changed".to_owned(),
        })
    }

    /// What [`Self::check`] says of the file at `path`; nothing if there is none.
    pub(crate) fn load_checked<T: DeserializeOwned>(
        &self,
        path: &Path,
    ) -> Result<Option<T>, ReadError> {
        match durable::read(path, MAX_SIZE)? {
            Some(bytes) => self.check(path, &bytes).map(Some),
            None => Ok(None),
        }
    }

    /// The body of the file at `path`; nothing if there is none.
    pub(crate) fn load<T: DeserializeOwned>(&self, path: &Path) -> Result<Option<T>, ReadError> {
        match durable::read(path, MAX_SIZE)? {
            Some(bytes) => self.open(path, &bytes).map(Some),
            None => Ok(None),
        }
    }
}

/// Longest version of Crab that is believed.
const MAX_VERSION: usize = 32;

/// The same error, with who wrote the file, if its body says that where this version does.
fn written_by(error: ReadError, body: &RawValue) -> ReadError {
    #[derive(Deserialize)]
    struct Machine {
        crab: String,
    }
    #[derive(Deserialize)]
    struct Body {
        machine: Machine,
    }
    let said: Option<Body> = serde_json::from_str(body.get()).ok();
    let said = said.map(|body| clip(&body.machine.crab, MAX_VERSION));
    match error {
        ReadError::NewerFormat {
            path, found, known, ..
        } => ReadError::NewerFormat {
            path,
            found,
            known,
            by: said,
        },
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST: Envelope = Envelope {
        magic: "crab-test",
        version: 2,
    };

    fn open(bytes: &[u8]) -> Result<Vec<u32>, ReadError> {
        TEST.open(Path::new("x"), bytes)
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let sealed = TEST.seal(&vec![1, 2, 3]).unwrap();
        assert_eq!(open(&sealed).unwrap(), [1, 2, 3]);
        assert!(TEST.check::<Vec<u32>>(Path::new("x"), &sealed).is_ok());
        // The last byte is the newline.
        for at in 0..sealed.len() - 1 {
            for bit in 0..8 {
                let mut flipped = sealed.clone();
                flipped[at] ^= 1 << bit;
                assert!(TEST.check::<Vec<u32>>(Path::new("x"), &flipped).is_err());
                match open(&flipped) {
                    // A lower version number, or another case of a hex digit,
                    // is the same content.
                    Ok(body) => assert_eq!(body, [1, 2, 3]),
                    Err(_) => continue,
                }
            }
            assert!(open(&sealed[..at]).is_err());
        }
    }

    #[test]
    fn a_newer_version_is_refused_whatever_its_body() {
        let bytes = br#"{"magic":"crab-test","version":4,"blake3":"0000000000000000000000000000000000000000000000000000000000000000","body":"?"}"#;
        assert!(matches!(
            open(bytes),
            Err(ReadError::NewerFormat {
                found: 4,
                known: 2,
                ..
            })
        ));
    }
}
