// SPDX-License-Identifier: Apache-2.0

//! A host with a store, and the `crab` binary on it.

// Each test binary uses its own part of this.
#![allow(dead_code)]

pub(crate) mod shim;

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
    time::Duration,
};

use crab_store::*;

pub(crate) struct Host {
    dir: tempfile::TempDir,
}

/// What a command printed, and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ran {
    /// The text of a command that did its work.
    pub(crate) fn ok(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (0, ""), "{}", self.out);
        self.out
    }

    pub(crate) fn json(self) -> serde_json::Value {
        let out = self.ok();
        assert_eq!(out.lines().count(), 1, "{out}");
        serde_json::from_str(&out).unwrap()
    }

    /// The line of a command that did not.
    pub(crate) fn error(self, code: i32) -> String {
        assert_eq!((self.code, self.out.as_str()), (code, ""), "{}", self.err);
        let line = self.err.strip_suffix('\n').unwrap();
        assert_eq!(line.lines().count(), 1, "{line}");
        let rest = line.strip_prefix("crab: ").unwrap();
        assert!(rest.contains(": ") && rest.contains("; "), "{line}");
        line.to_owned()
    }
}

impl Host {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let host = Self { dir };
        let text = format!(
            "store = {:?}\nrun_dir = {:?}\n",
            host.path("store"),
            host.path("run")
        );
        fs::write(host.path("config.toml"), text).unwrap();
        host
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_crab"));
        // No client of containerd or Docker: what they do is tested with the
        // real ones.
        command
            .args(args)
            .env("CRAB_CONFIG", self.path("config.toml"))
            .env("PATH", self.path("bin"));
        command
    }

    pub(crate) fn crab(&self, args: &[&str]) -> Ran {
        self.command(args).output().unwrap().into()
    }

    pub(crate) fn writer(&self, id: &str) -> SandboxWriter {
        let store = Store::create(self.path("store")).unwrap();
        // A program that another test is about to run has what is open here until it runs.
        let patience = Duration::from_secs(10);
        store.writer_within(&id.parse().unwrap(), patience).unwrap()
    }

    /// A sandbox with turns of every class, a failure and a rollback.
    pub(crate) fn with_history(id: &str) -> Self {
        let host = Self::new();
        host.history(id, Client::Containerd);
        host
    }

    /// The same, made by a client.
    pub(crate) fn history(&self, id: &str, client: Client) {
        let writer = self.writer(id);
        writer
            .set_meta(&SandboxMeta {
                client,
                name: Some("team/agent/main".to_owned()),
                image: Some("example.test/agent:1".to_owned()),
                bundle: "/b".to_owned(),
                created_ms: 1_700_000_000_000,
                snapshot: Default::default(),
                layers: None,
                config_faults: vec!["dev.crab.x is ignored: no such setting".to_owned()],
                limits: Limits::default(),
            })
            .unwrap();
        let commands = [
            "sleep infinity",
            "ls /",
            "sh -c 'echo hi > a'",
            "./server &",
        ];
        let classes = [Class::Files, Class::None, Class::Files, Class::Full];
        for (turn, (command, class)) in commands.into_iter().zip(classes).enumerate() {
            let mut record = turn_record(turn as u64, command, class);
            if class == Class::None {
                record.checkpoint = Some(TurnId(0));
            } else {
                let manifest = publish(&writer, turn as u64, class);
                record.cost.bytes_stored = manifest.bytes_stored;
                record.cost.capture_us = 12_345;
            }
            append(&writer, JournalRecord::Turn(record));
        }
        let mut lost = turn_record(4, "dd if=/dev/zero of=big", Class::Files);
        lost.exit = Some(1);
        append(&writer, JournalRecord::Turn(lost));
        append(
            &writer,
            JournalRecord::CaptureFailed(CaptureFailed {
                at_ms: 1,
                turn: TurnId(4),
                reason: "no space left".to_owned(),
                kind: Default::default(),
            }),
        );
        append(
            &writer,
            JournalRecord::Rollback(RollbackRecord {
                at_ms: 1_700_000_009_000,
                from: TurnId(4),
                asked: TurnId(2),
                checkpoint: TurnId(2),
                processes: false,
                took_us: 85_000,
                warm: false,
            }),
        );
        let mut after = turn_record(5, "printf '\u{1b}[2J'", Class::None);
        after.checkpoint = Some(TurnId(2));
        append(&writer, JournalRecord::Turn(after));
    }
}

pub(crate) fn append(writer: &SandboxWriter, record: JournalRecord) {
    writer.append(record, Durability::Lazy).unwrap();
}

pub(crate) fn turn_record(turn: u64, command: &str, class: Class) -> TurnRecord {
    let trigger = if turn == 0 {
        Trigger::Start
    } else {
        Trigger::Exec
    };
    TurnRecord {
        command: command.to_owned(),
        began_ms: 1_700_000_000_000 + turn * 1000,
        ended_ms: 1_700_000_000_250 + turn * 1000,
        exit: (turn > 0).then_some(0),
        class,
        reason: "because of a test".to_owned(),
        checkpoint: Some(TurnId(turn)),
        files_changed: u64::from(class.has_files()),
        changed: vec![ChangedPath {
            change: Change::Added,
            path: "a".to_owned(),
            kind: Some(PathKind::File),
            size: Some(17),
            before: None,
        }],
        ..TurnRecord::new(TurnId(turn), trigger)
    }
}

fn entry(path: &str, kind: EntryKind) -> TreeEntry {
    TreeEntry {
        path: path.into(),
        kind,
        mode: 0o644,
        uid: 0,
        gid: 0,
        mtime: Time::default(),
        xattrs: Vec::new(),
    }
}

fn publish(writer: &SandboxWriter, turn: u64, class: Class) -> Manifest {
    let mut pack = writer.begin().unwrap();
    let text = format!("content of turn {turn}");
    let Content { size, segments } = pack.put_stream(&mut text.as_bytes()).unwrap();
    let file = EntryKind::File {
        size,
        content: segments.clone(),
    };
    let gone = EntryKind::CharDevice { rdev: 0 };
    let entries = vec![
        entry("", EntryKind::Dir),
        entry("a", file),
        entry("gone", gone),
    ];
    let upper = pack.put_tree(&Tree { entries }).unwrap();
    let processes = class.has_processes().then(|| {
        let image = ProcessImage {
            turn: TurnId(turn),
            files: vec![ImageFile {
                name: "pages-1.img".to_owned(),
                size,
                content: segments,
            }],
            tmpfs_images: Vec::new(),
            processes: vec![ProcessEntry {
                pid: 7,
                comm: "server".to_owned(),
                cmdline: "./server --port 1".to_owned(),
            }],
            boot_id: String::new(),
            criu_version: "4.1.1".to_owned(),
            runtime: "runc".to_owned(),
            extra: Default::default(),
        };
        ProcessRef {
            turn: TurnId(turn),
            digest: pack.put_process_image(&image).unwrap(),
        }
    });
    let spec = pack.put(b"{}").unwrap();
    pack.publish(Manifest {
        sandbox: writer.store().id().clone(),
        turn: TurnId(turn),
        class,
        created_ms: 1_700_000_000_000 + turn,
        parent: None,
        files: FileImage {
            turn: TurnId(turn),
            upper,
            whole: false,
            tmpfs: Vec::new(),
        },
        processes,
        degraded: None,
        spec,
        packs: Vec::new(),
        bytes_stored: 0,
        bytes_raw: 0,
        machine: None,
    })
    .unwrap()
}
