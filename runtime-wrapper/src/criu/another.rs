// SPDX-License-Identifier: Apache-2.0
//! An image of one container's processes, restored in another container.
//!
//! CRIU puts processes back where they were: into the cgroups of the dumped ones, and under
//! the host name that these had. runc tells it of the new container's cgroups in v1 hierarchies alone
//! (`criuApplyCgroups`). In a copy of the image that belongs to the new container, both are changed.

use std::{fs, io::ErrorKind, path::Path};

use super::{
    ImageError, io_error,
    records::{
        CGROUP_MAGIC, Field, INVENTORY_MAGIC, UTSNS_MAGIC, field, fields, first_record, put_bytes,
        put_number, records, rewrite, without_field, write_records,
    },
};

/// `inventory_entry.root_cg_set`: the set of cgroups in which CRIU itself was.
const ROOT_SET: u64 = 5;
/// `cgroup_entry`.
const SETS: u64 = 1;
const CONTROLLERS: u64 = 2;
/// `cg_set_entry`.
const SET_ID: u64 = 1;
const MEMBERS: u64 = 2;
/// `cg_member_entry`.
const MEMBER_NAME: u64 = 1;
const MEMBER_PATH: u64 = 2;
const MEMBER_PREFIX: u64 = 3;
/// `cg_controller_entry`.
const CONTROLLER_NAMES: u64 = 1;
const CONTROLLER_DIRS: u64 = 2;
/// `cgroup_dir_entry.dir_name`: without the leading slash, whole for the uppermost.
const DIR_NAME: u64 = 1;
/// `utsns_entry.nodename`.
const NODE_NAME: u64 = 1;

/// Has the processes of an image, which is the caller's own copy, restored in the cgroup at
/// `path` of every hierarchy, and in what was below theirs below that.
///
/// # Errors
/// When the image cannot be read or written, or a process would stay in a cgroup that is not
/// the container's.
pub fn move_cgroups(images: &Path, path: &str) -> Result<(), ImageError> {
    let file = images.join("cgroup.img");
    if !file.exists() {
        return Ok(());
    }
    let inventory = first_record(&images.join("inventory.img"), INVENTORY_MAGIC)?;
    let criu = field(&inventory, ROOT_SET).and_then(Field::number);
    let before = records(&file, CGROUP_MAGIC)?;
    let mut after = Vec::with_capacity(before.len());
    for entry in &before {
        let moved = moved(entry, criu, path);
        let entry = moved.ok_or_else(|| io_error("read", &file)(ErrorKind::InvalidData.into()))?;
        if let Some(stray) = stray(&entry, criu, path) {
            let path = String::from_utf8_lossy(&stray).into_owned();
            return Err(ImageError::Cgroup { path });
        }
        after.push(entry);
    }
    match before == after {
        true => Ok(()),
        false => write_records(&file, CGROUP_MAGIC, &after),
    }
}

/// A cgroup of a `cgroup_entry` in which a process would be that is neither below `to` nor a
/// hierarchy's root, in which those are that nobody has put anywhere.
fn stray(entry: &[u8], criu: Option<u64>, to: &str) -> Option<Vec<u8>> {
    let mut paths = members(entry, criu)?.into_iter();
    let path = paths.find(|member| {
        let path = text(member, MEMBER_PATH);
        path != b"/" && below(path, to.as_bytes()).is_none()
    })?;
    Some(text(&path, MEMBER_PATH).to_vec())
}

/// Where the processes are, but CRIU itself.
fn members(entry: &[u8], criu: Option<u64>) -> Option<Vec<Vec<u8>>> {
    let mut members = Vec::new();
    for (number, set) in fields(entry)? {
        if number != SETS || is_of(set.bytes()?, criu) {
            continue;
        }
        for (number, member) in fields(set.bytes()?)? {
            if let Some(member) = member.bytes().filter(|_| number == MEMBERS) {
                members.push(member.to_vec());
            }
        }
    }
    Some(members)
}

/// The rest of a path in or below a directory, with its slash.
fn below<'a>(path: &'a [u8], dir: &[u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(dir)?;
    (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
}

/// The longest path in or below which both are.
fn common(one: &[u8], other: &[u8]) -> Vec<u8> {
    let mut end = 0;
    for at in 0..=one.len() {
        let is_end = at == one.len() || one[at] == b'/';
        if is_end && below(other, &one[..at]).is_some() {
            end = at;
        }
    }
    one[..end].to_vec()
}

/// The same of a `cgroup_entry`; nothing if it is none.
fn moved(entry: &[u8], criu: Option<u64>, to: &str) -> Option<Vec<u8>> {
    let mut roots = Vec::new();
    for (number, value) in fields(entry)? {
        if number == CONTROLLERS {
            roots.push(Root::of(value.bytes()?, entry, criu)?);
        }
    }
    let mut moved = Vec::new();
    for (number, value) in fields(entry)? {
        let changed = match number {
            SETS => of_set(value.bytes()?, criu, &roots, to)?,
            CONTROLLERS => of_controller(value.bytes()?, &roots, to)?,
            _ => value.bytes()?.to_vec(),
        };
        put_bytes(&mut moved, number, &changed);
    }
    Some(moved)
}

/// Where the container's own cgroup was in one hierarchy.
struct Root {
    controllers: Vec<Vec<u8>>,
    path: Option<Vec<u8>>,
}

impl Root {
    /// The cgroup that its processes saw as their root, if they had a namespace of
    /// cgroups; else the one in or below which all were.
    fn of(controller: &[u8], entry: &[u8], criu: Option<u64>) -> Option<Self> {
        let mut controllers = Vec::new();
        for (number, value) in fields(controller)? {
            if number == CONTROLLER_NAMES {
                controllers.push(value.bytes()?.to_vec());
            }
        }
        let mut path: Option<Vec<u8>> = None;
        for member in members(entry, criu)? {
            let name = text(&member, MEMBER_NAME);
            if !controllers.iter().any(|controller| controller == name) {
                continue;
            }
            let mut at = text(&member, MEMBER_PATH).to_vec();
            if let Some(prefix) = field(&member, MEMBER_PREFIX).and_then(Field::number) {
                at.truncate(usize::try_from(prefix).ok()?);
            }
            path = Some(match path {
                Some(path) => common(&path, &at),
                None => at,
            });
        }
        Some(Self { controllers, path })
    }

    /// Where a path is now that was `path` before.
    fn moves(&self, path: &[u8], to: &str) -> Option<Vec<u8>> {
        let root = self.path.as_deref().filter(|root| root.len() > 1)?;
        Some([to.as_bytes(), below(path, root)?].concat())
    }
}

/// Whether a set is the one of that number.
fn is_of(set: &[u8], id: Option<u64>) -> bool {
    id.is_some() && field(set, SET_ID).and_then(Field::number) == id
}

fn text(message: &[u8], number: u64) -> &[u8] {
    let value = field(message, number).and_then(Field::bytes);
    value.unwrap_or_default()
}

fn of_set(set: &[u8], criu: Option<u64>, roots: &[Root], to: &str) -> Option<Vec<u8>> {
    if is_of(set, criu) {
        return Some(set.to_vec());
    }
    let mut moved = Vec::new();
    for (number, value) in fields(set)? {
        match value {
            Field::Bytes(member) if number == MEMBERS => {
                put_bytes(&mut moved, number, &of_member(member, roots, to)?);
            }
            Field::Bytes(bytes) => put_bytes(&mut moved, number, bytes),
            Field::Number(value) => put_number(&mut moved, number, value),
        }
    }
    Some(moved)
}

fn of_member(member: &[u8], roots: &[Root], to: &str) -> Option<Vec<u8>> {
    let name = text(member, MEMBER_NAME);
    let root = roots
        .iter()
        .find(|root| root.controllers.iter().any(|controller| controller == name));
    let path = root.and_then(|root| root.moves(text(member, MEMBER_PATH), to));
    let Some(path) = path else {
        return Some(member.to_vec());
    };
    let mut moved = without_field(&without_field(member, MEMBER_PATH)?, MEMBER_PREFIX)?;
    put_bytes(&mut moved, MEMBER_PATH, &path);
    if field(member, MEMBER_PREFIX).is_some() {
        put_number(&mut moved, MEMBER_PREFIX, to.len() as u64);
    }
    Some(moved)
}

fn of_controller(controller: &[u8], roots: &[Root], to: &str) -> Option<Vec<u8>> {
    let name = text(controller, CONTROLLER_NAMES);
    let root = roots
        .iter()
        .find(|root| root.controllers.iter().any(|controller| controller == name));
    let mut moved = Vec::new();
    for (number, value) in fields(controller)? {
        match value {
            Field::Bytes(dir) if number == CONTROLLER_DIRS => {
                let whole = [b"/", text(dir, DIR_NAME)].concat();
                let path = root.and_then(|root| root.moves(&whole, to));
                let mut changed = dir.to_vec();
                if let Some(path) = path {
                    changed = without_field(dir, DIR_NAME)?;
                    put_bytes(&mut changed, DIR_NAME, path.strip_prefix(b"/")?);
                }
                put_bytes(&mut moved, number, &changed);
            }
            Field::Bytes(bytes) => put_bytes(&mut moved, number, bytes),
            Field::Number(value) => put_number(&mut moved, number, value),
        }
    }
    Some(moved)
}

/// Gives the processes of an image, which is the caller's own copy, another host name, if
/// they have a namespace for one.
///
/// # Errors
/// When the image cannot be read or written.
pub fn rename_host(images: &Path, name: &str) -> Result<(), ImageError> {
    for path in named(images, "utsns-")? {
        rewrite(&path, UTSNS_MAGIC, |entry| {
            let mut rest = without_field(entry, NODE_NAME)?;
            put_bytes(&mut rest, NODE_NAME, name.as_bytes());
            Some(rest)
        })?;
    }
    Ok(())
}

/// Whether an image holds TCP connections.
///
/// # Errors
/// When the directory cannot be read.
pub fn holds_connections(images: &Path) -> Result<bool, ImageError> {
    Ok(!named(images, "tcp-stream-")?.is_empty())
}

/// The files of an image whose name begins so.
fn named(images: &Path, prefix: &str) -> Result<Vec<std::path::PathBuf>, ImageError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(images).map_err(io_error("read", images))? {
        let entry = entry.map_err(io_error("read", images))?;
        if entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(prefix.as_bytes())
        {
            found.push(entry.path());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, path: &str, prefix: Option<u64>) -> Vec<u8> {
        let mut member = Vec::new();
        put_bytes(&mut member, MEMBER_NAME, name.as_bytes());
        put_bytes(&mut member, MEMBER_PATH, path.as_bytes());
        if let Some(prefix) = prefix {
            put_number(&mut member, MEMBER_PREFIX, prefix);
        }
        member
    }

    fn set(id: u64, members: &[Vec<u8>]) -> Vec<u8> {
        let mut set = Vec::new();
        put_number(&mut set, SET_ID, id);
        for member in members {
            put_bytes(&mut set, MEMBERS, member);
        }
        set
    }

    fn controller(name: &str, dirs: &[&str]) -> Vec<u8> {
        let mut controller = Vec::new();
        put_bytes(&mut controller, CONTROLLER_NAMES, name.as_bytes());
        for dir in dirs {
            let mut entry = Vec::new();
            put_bytes(&mut entry, DIR_NAME, dir.as_bytes());
            put_bytes(&mut entry, 4, &[8, 1, 16, 0, 24, 0]);
            put_bytes(&mut controller, CONTROLLER_DIRS, &entry);
        }
        controller
    }

    fn image(dir: &Path, sets: &[Vec<u8>], controllers: &[Vec<u8>]) {
        let mut inventory = Vec::new();
        put_number(&mut inventory, 1, 1);
        put_number(&mut inventory, ROOT_SET, 1);
        write_records(&dir.join("inventory.img"), INVENTORY_MAGIC, &[inventory]).unwrap();
        let mut entry = Vec::new();
        for set in sets {
            put_bytes(&mut entry, SETS, set);
        }
        for controller in controllers {
            put_bytes(&mut entry, CONTROLLERS, controller);
        }
        write_records(&dir.join("cgroup.img"), CGROUP_MAGIC, &[entry]).unwrap();
    }

    fn read(dir: &Path) -> Vec<u8> {
        first_record(&dir.join("cgroup.img"), CGROUP_MAGIC).unwrap()
    }

    #[test]
    fn every_path_of_the_container_moves_and_none_of_crius_own() {
        let dir = tempfile::tempdir().unwrap();
        let image_of = |path: &str, prefix| {
            let below = format!("{path}/child");
            let dirs = [path.trim_start_matches('/')];
            image(
                dir.path(),
                &[
                    set(
                        1,
                        &[member("", "/shims", None), member("memory", path, None)],
                    ),
                    set(2, &[member("", path, prefix), member("memory", path, None)]),
                    set(
                        3,
                        &[member("", &below, prefix), member("memory", path, None)],
                    ),
                ],
                &[controller("", &dirs), controller("memory", &dirs)],
            );
            read(dir.path())
        };
        let expected = image_of("/default/longer-name", Some(20));
        // CRIU's own set is as it was.
        let own = |entry: &[u8]| fields(entry).unwrap()[0].1.bytes().unwrap().to_vec();
        image_of("/default/old", Some(12));
        let before = own(&read(dir.path()));
        move_cgroups(dir.path(), "/default/longer-name").unwrap();
        let moved = read(dir.path());
        assert_eq!(own(&moved), before);
        let rest = |entry: &[u8]| {
            let all = fields(entry).unwrap();
            all[1..]
                .iter()
                .map(|(_, v)| v.bytes().unwrap().to_vec())
                .collect::<Vec<_>>()
        };
        let sorted = |entries: Vec<Vec<u8>>| {
            entries
                .into_iter()
                .map(|mut it| {
                    it.sort();
                    it
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(sorted(rest(&moved)), sorted(rest(&expected)));
        // Once more changes nothing.
        move_cgroups(dir.path(), "/default/longer-name").unwrap();
        assert_eq!(read(dir.path()), moved);
    }

    #[test]
    fn processes_in_several_cgroups_of_the_container_all_move_and_a_stray_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let image_of = |one: &str, other: &str| {
            image(
                dir.path(),
                &[
                    set(1, &[member("", "/shims", None)]),
                    set(2, &[member("", one, None)]),
                    set(3, &[member("", other, None)]),
                ],
                &[controller("", &[])],
            );
        };
        let paths = || {
            let all = members(&read(dir.path()), Some(1)).unwrap().into_iter();
            all.map(|member| String::from_utf8(text(&member, MEMBER_PATH).to_vec()).unwrap())
                .collect::<Vec<_>>()
        };
        // Without a namespace of cgroups, as under systemd.
        image_of("/d/old/init.scope", "/d/old/system.slice/x");
        move_cgroups(dir.path(), "/d/new").unwrap();
        assert_eq!(paths(), ["/d/new/init.scope", "/d/new/system.slice/x"]);
        image_of("/d/old", "/");
        let refused = move_cgroups(dir.path(), "/d/new");
        assert!(
            matches!(refused, Err(ImageError::Cgroup { .. })),
            "{refused:?}"
        );
        image_of("/d/old", "/elsewhere");
        assert!(move_cgroups(dir.path(), "/d/new").is_err());
    }

    #[test]
    fn what_two_paths_have_in_common_is_whole_names() {
        assert_eq!(common(b"/a/b/c", b"/a/b/d"), b"/a/b");
        assert_eq!(common(b"/a/b", b"/a/b/d"), b"/a/b");
        assert_eq!(common(b"/a/bc", b"/a/bd"), b"/a");
        assert_eq!(common(b"/a", b"/b"), b"");
    }

    #[test]
    fn an_image_without_cgroups_is_left() {
        let dir = tempfile::tempdir().unwrap();
        move_cgroups(dir.path(), "/default/new").unwrap();
        assert!(!dir.path().join("cgroup.img").exists());
    }

    #[test]
    fn only_the_host_name_changes_and_connections_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("utsns-11.img");
        let mut entry = Vec::new();
        put_bytes(&mut entry, NODE_NAME, b"old");
        put_bytes(&mut entry, 2, b"(none)");
        write_records(&path, UTSNS_MAGIC, &[entry]).unwrap();
        rename_host(dir.path(), "new").unwrap();
        let entry = first_record(&path, UTSNS_MAGIC).unwrap();
        assert_eq!(
            (text(&entry, 1), text(&entry, 2)),
            (&b"new"[..], &b"(none)"[..])
        );
        assert!(!holds_connections(dir.path()).unwrap());
        fs::write(dir.path().join("tcp-stream-1f.img"), "").unwrap();
        assert!(holds_connections(dir.path()).unwrap());
    }
}
