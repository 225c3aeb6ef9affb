// SPDX-License-Identifier: Apache-2.0

//! `crab diff`, on a store of one's own and layers of an image that are plain directories.

mod support;

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use crab_store::*;
use support::{Host, Ran, append, turn_record};

/// A file in the upper directory.
fn file(pack: &mut PackWriter, path: &str, content: impl AsRef<[u8]>) -> TreeEntry {
    let Content { size, segments } = pack.put_stream(&mut content.as_ref()).unwrap();
    let content = segments;
    entry(path, EntryKind::File { size, content })
}

fn entry(path: impl AsRef<[u8]>, kind: EntryKind) -> TreeEntry {
    TreeEntry {
        path: path.as_ref().to_vec(),
        mode: if kind == EntryKind::Dir { 0o755 } else { 0o644 },
        kind,
        uid: 0,
        gid: 0,
        mtime: Time::default(),
        xattrs: Vec::new(),
    }
}

fn dir(path: &str) -> TreeEntry {
    entry(path, EntryKind::Dir)
}

fn gone(path: &str) -> TreeEntry {
    entry(path, EntryKind::CharDevice { rdev: 0 })
}

fn opaque(path: &str) -> TreeEntry {
    let mut dir = dir(path);
    dir.xattrs = vec![(b"trusted.overlay.opaque".to_vec(), b"y".to_vec())];
    dir
}

struct Sandbox {
    host: Host,
    writer: SandboxWriter,
}

impl Sandbox {
    /// With an image of two layers.
    fn new() -> Self {
        let host = Host::new();
        let layers = ["upper-layer", "lower-layer"].map(|name| host.path(name));
        for (layer, files) in layers.iter().zip([
            &[("etc/hosts", "one\ntwo\nthree\n"), ("etc/motd", "hello\n")][..],
            &[
                ("etc/motd", "hidden\n"),
                ("srv/a/deep", "deep\n"),
                ("srv/top", "top\n"),
            ],
        ]) {
            for (path, text) in files {
                let path = layer.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(&path, text).unwrap();
                let epoch = std::time::UNIX_EPOCH;
                let file = fs::File::options().write(true).open(&path).unwrap();
                file.set_modified(epoch).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
            }
        }
        let writer = host.writer("default/demo");
        let sandbox = Self { host, writer };
        sandbox.set_layers(Some(&layers.each_ref().map(|layer| layer.as_path())));
        sandbox
    }

    fn set_layers(&self, layers: Option<&[&Path]>) {
        let meta = SandboxMeta {
            client: Client::Containerd,
            name: None,
            image: None,
            bundle: "/b".to_owned(),
            created_ms: 1,
            snapshot: Default::default(),
            layers: layers.map(|layers| ImageLayers::new(layers.iter().copied(), false)),
            config_faults: Vec::new(),
            limits: Limits::default(),
        };
        self.writer.set_meta(&meta).unwrap();
    }

    /// A turn at whose end the upper directory is so.
    fn turn(&self, turn: u64, upper: impl FnOnce(&mut PackWriter) -> Vec<TreeEntry>) {
        self.turn_with(turn, upper, |_| Vec::new(), None);
    }

    fn turn_with(
        &self,
        turn: u64,
        upper: impl FnOnce(&mut PackWriter) -> Vec<TreeEntry>,
        shm: impl FnOnce(&mut PackWriter) -> Vec<TreeEntry>,
        processes: Option<&[(u32, &str)]>,
    ) {
        let mut pack = self.writer.begin().unwrap();
        let tree = |mut entries: Vec<TreeEntry>, pack: &mut PackWriter| {
            entries.push(dir(""));
            let mut tree = Tree { entries };
            tree.sort();
            pack.put_tree(&tree).unwrap()
        };
        let entries = upper(&mut pack);
        let upper = tree(entries, &mut pack);
        let entries = shm(&mut pack);
        let shm = tree(entries, &mut pack);
        let processes = processes.map(|processes| {
            let image = ProcessImage {
                turn: TurnId(turn),
                files: Vec::new(),
                tmpfs_images: Vec::new(),
                processes: processes
                    .iter()
                    .map(|(pid, comm)| ProcessEntry {
                        pid: *pid,
                        comm: (*comm).to_owned(),
                        cmdline: format!("./{comm}"),
                    })
                    .collect(),
                boot_id: String::new(),
                criu_version: String::new(),
                runtime: String::new(),
                extra: Default::default(),
            };
            ProcessRef {
                turn: TurnId(turn),
                digest: pack.put_process_image(&image).unwrap(),
            }
        });
        let spec = pack.put(b"{}").unwrap();
        pack.publish(Manifest {
            sandbox: self.writer.store().id().clone(),
            turn: TurnId(turn),
            class: Class::Full,
            created_ms: turn,
            parent: None,
            files: FileImage {
                turn: TurnId(turn),
                upper,
                whole: false,
                tmpfs: vec![TmpfsTree {
                    mount: b"/dev/shm".to_vec(),
                    tree: shm,
                }],
            },
            processes,
            degraded: None,
            spec,
            packs: Vec::new(),
            bytes_stored: 0,
            bytes_raw: 0,
            machine: None,
        })
        .unwrap();
        let record = turn_record(turn, "x", Class::Full);
        append(&self.writer, JournalRecord::Turn(record));
    }

    fn diff(&self, args: &[&str]) -> Ran {
        self.host.crab(&[&["diff", "demo"], args].concat())
    }

    fn lines(&self, args: &[&str]) -> Vec<String> {
        self.diff(args).ok().lines().map(str::to_owned).collect()
    }
}

#[test]
fn what_the_image_has_is_told_from_what_is_new() {
    let sandbox = Sandbox::new();
    sandbox.turn(0, |_| vec![]);
    sandbox.turn(1, |pack| {
        let mut changed = file(pack, "etc/hosts", "one\n2\nthree\n");
        changed.mode = 0o600;
        changed.uid = 7;
        let mut same = file(pack, "etc/motd", "hello\n");
        same.xattrs = vec![(b"user.a".to_vec(), b"b".to_vec())];
        vec![
            dir("etc"),
            changed,
            same,
            file(pack, "etc/new", "new"),
            dir("srv"),
            gone("srv/top"),
            opaque("srv/a"),
            entry(
                "link",
                EntryKind::Symlink {
                    target: b"etc".to_vec(),
                },
            ),
        ]
    });
    assert_eq!(
        sandbox.lines(&["0", "1"]),
        [
            "~ /etc/hosts (14 B -> 12 B, content, mode 0644 -> 0600, owner 0:0 -> 7:0)",
            "~ /etc/motd (attributes user.a)",
            "+ /etc/new (3 B)",
            "+ /link (symlink)",
            "- /srv/a/deep (5 B)",
            "- /srv/top (4 B)",
        ]
    );
    // The other way round.
    let back = sandbox.lines(&["1", "0"]);
    assert_eq!(back[2], "- /etc/new (3 B)");
    assert_eq!(back[5], "+ /srv/top (4 B)");
    assert_eq!(sandbox.lines(&["1", "1"]), ["turns 1 and 1 end alike"]);
}

#[test]
fn the_text_of_files_is_shown_as_a_patch_takes_it() {
    let sandbox = Sandbox::new();
    sandbox.turn(0, |pack| {
        vec![file(pack, "bin", b"a\0b"), file(pack, "old", "x\n")]
    });
    sandbox.turn(1, |pack| {
        vec![
            file(pack, "bin", b"a\0c"),
            dir("etc"),
            file(pack, "etc/hosts", "one\n2\nthree\n\tfour\u{1b}[2J"),
            file(pack, "large", vec![b'x'; 2 << 20]),
            file(pack, "latin", b"caf\xe9"),
            file(pack, "new", "n\n"),
        ]
    });
    let text = sandbox.diff(&["-u", "0", "1"]).ok();
    let (_, texts) = text.split_once("\n\n").unwrap();
    let expected = "\
/bin: binary files differ

--- a/etc/hosts
+++ b/etc/hosts
@@ -1,3 +1,4 @@
 one
-two
+2
 three
+\tfour\\u{1b}[2J
\\ No newline at end of file

/large: larger than 1.0 MiB (2.0 MiB): not compared

/latin: binary files differ

--- /dev/null
+++ b/new
@@ -0,0 +1 @@
+n

--- a/old
+++ /dev/null
@@ -1 +0,0 @@
-x
";
    assert_eq!(texts, expected, "{text}");
    let json = sandbox.diff(&["-u", "0", "1", "--json"]).json();
    let hosts = json["files"]
        .as_array()
        .unwrap()
        .iter()
        .find(|file| file["path"] == "/etc/hosts")
        .unwrap();
    assert!(
        hosts["text"]["diff"]
            .as_str()
            .unwrap()
            .contains("+\tfour\u{1b}[2J")
    );
    assert_eq!(hosts["change"], "changed");
    assert_eq!(hosts["size_before"], 14);
    assert_eq!(hosts["attributes"][0]["what"], "content");
    assert_eq!(json["same"], false);
    assert_eq!(json["a"]["checkpoint"], 0);
}

#[test]
fn kinds_memory_and_processes_are_compared() {
    let sandbox = Sandbox::new();
    let link = |to: &str| EntryKind::Symlink { target: to.into() };
    sandbox.turn_with(
        0,
        |pack| vec![file(pack, "a", "a"), entry("l", link("x")), dir("d")],
        |pack| vec![file(pack, "shared", "1")],
        Some(&[(1, "init"), (7, "server"), (8, "helper")]),
    );
    sandbox.turn_with(
        1,
        |pack| vec![dir("a"), entry("l", link("y")), file(pack, "d", "")],
        |pack| vec![file(pack, "shared", "22"), file(pack, "more", "")],
        Some(&[(1, "init"), (8, "other"), (9, "new")]),
    );
    assert_eq!(
        sandbox.lines(&["0", "1"]),
        [
            "~ /a (file -> directory)",
            "~ /d (directory -> file)",
            "+ /dev/shm/more (0 B)",
            "~ /dev/shm/shared (1 B -> 2 B, content)",
            "~ /l (symlink, to x -> y)",
            "~ process 1 init: ./init",
            "+ process 8 other: ./other",
            "+ process 9 new: ./new",
            "- process 7 server: ./server",
            "- process 8 helper: ./helper",
        ]
    );
}

#[test]
fn an_image_that_is_gone_is_said_and_hides_nothing() {
    let sandbox = Sandbox::new();
    sandbox.turn(0, |pack| vec![file(pack, "both", "1")]);
    sandbox.turn(1, |pack| {
        let hosts = file(pack, "etc/hosts", "mine\n");
        vec![
            dir("etc"),
            hosts,
            file(pack, "both", "2"),
            dir("srv"),
            gone("srv/top"),
        ]
    });
    let expected = [
        "~ /both (content)",
        "+ /etc (directory)",
        "+ /etc/hosts (5 B)",
        "+ /srv (directory)",
        "- /srv/top (unknown)",
    ];
    let missing = "note: the layers of the image are not there: 4 paths";
    fs::remove_dir_all(sandbox.host.path("lower-layer")).unwrap();
    let lines = sandbox.lines(&["0", "1"]);
    assert_eq!(lines[..5], expected);
    assert!(
        lines[5].starts_with("note: the image cannot be read: "),
        "{lines:?}"
    );
    assert!(lines[6].starts_with(missing), "{lines:?}");
    // A shim of an earlier version did not say where they are.
    sandbox.set_layers(None);
    let lines = sandbox.lines(&["0", "1"]);
    assert_eq!(lines[..5], expected);
    assert!(lines[5].starts_with(missing), "{lines:?}");
}

#[test]
fn nothing_in_an_image_leads_out_of_it() {
    let sandbox = Sandbox::new();
    let secret = sandbox.host.path("secret");
    fs::create_dir(&secret).unwrap();
    fs::write(secret.join("file"), "secret\n").unwrap();
    let layer = sandbox.host.path("upper-layer");
    std::os::unix::fs::symlink(&secret, layer.join("way")).unwrap();
    std::os::unix::fs::symlink(secret.join("file"), layer.join("name")).unwrap();
    sandbox.turn(0, |_| vec![]);
    sandbox.turn(1, |pack| {
        vec![
            file(pack, "name", "mine\n"),
            dir("way"),
            file(pack, "way/file", "mine\n"),
        ]
    });
    let text = sandbox.diff(&["-u", "0", "1"]).ok();
    assert!(!text.contains("-secret"), "{text}");
    let listed: Vec<&str> = text.lines().take(3).collect();
    assert_eq!(
        listed,
        [
            "~ /name (symlink -> file)",
            "~ /way (symlink -> directory)",
            "+ /way/file (5 B)",
        ]
    );
}

#[test]
fn names_that_a_terminal_would_obey_are_escaped() {
    let sandbox = Sandbox::new();
    sandbox.turn(0, |_| vec![]);
    sandbox.turn(1, |pack| {
        let content = file(pack, "x", "x\n").kind;
        vec![entry(b"a\x1b[2J\xff\n", content)]
    });
    let text = sandbox.diff(&["-u", "0", "1"]).ok();
    assert!(text.starts_with("+ /a\\x1b[2J\\xff\\x0a (2 B)\n"), "{text}");
    assert!(text.contains("\n+++ b/a\\x1b[2J\\xff\\x0a\n"), "{text}");
}

#[test]
fn the_exit_code_tells_of_a_difference_only_if_asked_to() {
    let sandbox = Sandbox::new();
    sandbox.turn(0, |_| vec![]);
    sandbox.turn(1, |pack| vec![file(pack, "x", "")]);
    sandbox.diff(&["0", "1"]).ok();
    let ran = sandbox.diff(&["--exit-code", "0", "1"]);
    assert_eq!((ran.code, ran.out.as_str()), (5, "+ /x (0 B)\n"));
    sandbox.diff(&["--exit-code", "1", "1"]).ok();
    let error = sandbox.diff(&["--exit-code", "0", "9"]).error(3);
    assert!(
        error.starts_with("crab: cannot compare turns 0 and 9 of default/demo: "),
        "{error}"
    );
    let error = sandbox.diff(&["0"]).error(2);
    assert!(error.ends_with("; see crab --help"), "{error}");
}

#[test]
fn what_cannot_be_read_is_an_error_and_not_a_difference() {
    let sandbox = Sandbox::new();
    sandbox.turn(0, |pack| vec![file(pack, "x", "before\n")]);
    sandbox.turn(1, |pack| vec![file(pack, "x", "after\n")]);
    let packs = sandbox.host.path("store/sandboxes/default/demo/packs");
    for pack in fs::read_dir(packs).unwrap() {
        fs::remove_file(pack.unwrap().path()).unwrap();
    }
    let error = sandbox.diff(&["0", "1"]).error(1);
    assert!(error.contains("cannot compare turns 0 and 1"), "{error}");
}
