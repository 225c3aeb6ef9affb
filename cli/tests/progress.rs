// SPDX-License-Identifier: Apache-2.0

//! How far something is, on a terminal: told once it takes long, and gone at the end. The shim
//! here speaks the real protocol, takes its time and has no container behind it.

mod support;

use std::{
    fs::File,
    io::Read,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use crab_api::{sandbox::*, sandbox_ttrpc, ttrpc};
use rustix::{
    fs::{Mode, OFlags},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use support::{shim::Served, *};

/// A shim that takes so many milliseconds for its work.
#[derive(Default)]
struct Slow(AtomicU64);

impl Slow {
    async fn work(&self) {
        let ms = self.0.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}

#[async_trait::async_trait]
impl sandbox_ttrpc::Sandbox for Slow {
    async fn status(
        &self,
        _: &ttrpc::asynchronous::TtrpcContext,
        _: StatusRequest,
    ) -> ttrpc::Result<SandboxStatus> {
        Ok(SandboxStatus {
            state: "running".to_owned(),
            turn: 6,
            ..Default::default()
        })
    }

    async fn rollback(
        &self,
        _: &ttrpc::asynchronous::TtrpcContext,
        _: RollbackRequest,
    ) -> ttrpc::Result<RollbackResponse> {
        self.work().await;
        Ok(RollbackResponse {
            checkpoint: 2,
            warm: true,
            ..Default::default()
        })
    }

    async fn verify(
        &self,
        _: &ttrpc::asynchronous::TtrpcContext,
        _: VerifyRequest,
    ) -> ttrpc::Result<Verification> {
        self.work().await;
        Ok(Verification {
            same: true,
            ..Default::default()
        })
    }
}

/// What a command wrote to a terminal that is its standard error, and to its standard output.
fn on_a_terminal(mut command: Command) -> (String, String) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let size = Winsize {
        ws_row: 24,
        ws_col: 80,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&master, size).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let name = ptsname(&master, Vec::new()).unwrap();
    let slave = rustix::fs::open(name, flags, Mode::empty()).unwrap();
    let child = command
        .env("TERM", "xterm")
        .stdout(Stdio::piped())
        .stderr(slave)
        .spawn()
        .unwrap();
    // It has the other end of the terminal, too.
    drop(command);
    let reader = thread::spawn(move || {
        let mut seen = Vec::new();
        let mut buffer = [0; 4096];
        let mut master = File::from(master);
        // A terminal whose other end is closed ends with an error.
        while let Ok(count @ 1..) = master.read(&mut buffer) {
            seen.extend_from_slice(&buffer[..count]);
        }
        seen
    });
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let seen = reader.join().unwrap();
    (
        String::from_utf8(seen).unwrap(),
        String::from_utf8(output.stdout).unwrap(),
    )
}

/// What stands in the line at the end.
fn left(seen: &str) -> &str {
    let last = seen.rsplit(['\r', '\n']).next().unwrap();
    last.trim_start_matches("\u{1b}[2K")
}

#[test]
fn what_takes_long_is_told_on_a_terminal_and_nowhere_else() {
    let host = Host::with_history("default/demo");
    let shim = Arc::new(Slow::default());
    let mut served = Served::begin(&host, shim.clone());
    let rollback = ["rollback", "demo", "--turn", "2"];

    // Soon done: nothing to tell.
    let (seen, out) = on_a_terminal(host.command(&rollback));
    assert_eq!(seen, "");
    assert!(out.contains("is back at turn 2"), "{out}");

    shim.0.store(1500, Ordering::Relaxed);
    let (seen, out) = on_a_terminal(host.command(&rollback));
    assert!(
        seen.contains("rolling default/demo back to turn 2"),
        "{seen:?}"
    );
    assert_eq!(left(&seen), "", "{seen:?}");
    assert!(out.contains("is back at turn 2"), "{out}");
    let (seen, _) = on_a_terminal(host.command(&["verify", "demo"]));
    assert!(seen.contains("comparing default/demo"), "{seen:?}");
    assert_eq!(left(&seen), "", "{seen:?}");

    // A program reads it, or standard error is a file.
    let (seen, out) = on_a_terminal(host.command(&["verify", "demo", "--json"]));
    assert_eq!(seen, "");
    assert!(out.contains("\"same\":true"), "{out}");
    host.crab(&rollback).ok();
    served.end();
}
