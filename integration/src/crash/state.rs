// SPDX-License-Identifier: Apache-2.0

//! What a sandbox holds: all of it follows from one number.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use crab_store::{EntryKind, Manifest, ObjectReader, SandboxStore, Tree};

/// How many lines the larger file has.
const LINES: u64 = 3000;

/// Where in the sandbox the files are, without the slash before.
const NUMBER: &str = "root/number";
const LARGE: &str = "root/large";
const ODD: &str = "root/odd";
/// In its `/dev/shm`.
const IN_MEMORY: &str = "number";

/// A shell script that makes it so. A few small files are of earlier numbers, so that packs
/// are in need for different times.
pub(super) fn script(number: u64) -> String {
    let last = number + LINES;
    let odd = match number % 2 {
        0 => format!("rm -f /{ODD}"),
        _ => format!("echo {number} >/{ODD}"),
    };
    format!(
        "set -e; seq {number} {last} >/{LARGE}; echo {number} >/{NUMBER}; {odd}; \
         echo {number} >/root/of-{}; echo {number} >/dev/shm/{IN_MEMORY}",
        number % 4
    )
}

/// Something of which files can be read, by their paths.
trait Files {
    fn file(&self, path: &str) -> Result<Option<Vec<u8>>>;
    fn in_memory(&self, path: &str) -> Result<Option<Vec<u8>>>;
}

/// The number, if all of it follows from that; 0 where nothing was made yet.
fn number(files: &impl Files) -> Result<u64> {
    let Some(text) = files.file(NUMBER)? else {
        return Ok(0);
    };
    let text = String::from_utf8(text).context("its number")?;
    let number: u64 = text.trim().parse().with_context(|| text.clone())?;
    let line = format!("{number}\n").into_bytes();
    let lines: String = (number..=number + LINES)
        .map(|n| format!("{n}\n"))
        .collect();
    let odd = (number % 2 == 1).then(|| line.clone());
    ensure!(
        files.file(LARGE)? == Some(lines.into_bytes()),
        "its larger file is not that of state {number}"
    );
    ensure!(
        files.file(ODD)? == odd,
        "{ODD} is not that of state {number}"
    );
    ensure!(
        files.in_memory(IN_MEMORY)? == Some(line),
        "its file in memory is not that of state {number}"
    );
    Ok(number)
}

/// A live sandbox, by the root of its init.
struct Live<'a>(&'a Path);

fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
    }
}

impl Files for Live<'_> {
    fn file(&self, path: &str) -> Result<Option<Vec<u8>>> {
        read(&self.0.join(path))
    }

    fn in_memory(&self, path: &str) -> Result<Option<Vec<u8>>> {
        read(&self.0.join("dev/shm").join(path))
    }
}

/// The state of a sandbox whose root is there.
pub(super) fn of_live(root: &Path) -> Result<u64> {
    number(&Live(root))
}

/// A checkpoint in the store.
struct Stored {
    reader: ObjectReader,
    upper: Tree,
    in_memory: Option<Tree>,
}

impl Stored {
    fn content(&self, tree: &Tree, path: &str) -> Result<Option<Vec<u8>>> {
        let Some(entry) = tree.get(path.as_bytes()) else {
            return Ok(None);
        };
        let EntryKind::File { size, content } = &entry.kind else {
            anyhow::bail!("{path} is no file");
        };
        let mut bytes = vec![0; *size as usize];
        for segment in content {
            let part = self.reader.get(segment.digest)?;
            let at = segment.offset as usize;
            bytes
                .get_mut(at..at + part.len())
                .with_context(|| format!("{path} has content beyond its end"))?
                .copy_from_slice(&part);
        }
        Ok(Some(bytes))
    }
}

impl Files for Stored {
    fn file(&self, path: &str) -> Result<Option<Vec<u8>>> {
        self.content(&self.upper, path)
    }

    fn in_memory(&self, path: &str) -> Result<Option<Vec<u8>>> {
        match &self.in_memory {
            Some(tree) => self.content(tree, path),
            None => Ok(None),
        }
    }
}

/// The state in a checkpoint.
pub(super) fn of_checkpoint(sandbox: &SandboxStore, manifest: &Manifest) -> Result<u64> {
    let reader = sandbox.reader(manifest)?;
    let upper = reader.tree(manifest.files.upper)?;
    let in_memory = manifest.files.tmpfs_at(b"/dev/shm");
    let in_memory = in_memory.map(|tree| reader.tree(tree)).transpose()?;
    number(&Stored {
        reader,
        upper,
        in_memory,
    })
}
