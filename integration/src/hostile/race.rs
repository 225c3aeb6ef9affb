// SPDX-License-Identifier: Apache-2.0

//! A directory that becomes a link to a directory of the host, and a directory again, all the
//! time: by a process of the sandbox, and by one of the host, which no freeze stops.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use anyhow::{Result, ensure};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::Canary;
use crate::{Client, Crab, DEBIAN, RunOptions};

const RACE: &str = include_str!("race.py");
const PLACES: [&str; 2] = ["/root/race", "/dev/shm/race"];

/// Captures and rolls back while that goes on. Tells how many of the rollbacks were possible
/// while one of the host did it.
///
/// # Errors
/// When the sandbox cannot be brought back to what it was before.
pub fn race(client: Client, crab: &Crab, canary: &mut Canary, rounds: usize) -> Result<usize> {
    let sandbox = client.run(DEBIAN, RunOptions::without_bytecode())?;
    let dir = canary.dir().display().to_string();
    let mut script = String::new();
    for top in PLACES {
        // With a file of the same name in it: going by names finds either.
        script +=
            &format!("mkdir -p {top}/dir; echo inside >{top}/dir/secret; ln -s {dir} {top}/link; ");
    }
    let (said, before) = crab.turn(&sandbox, &["sh", "-c", &script])?;
    said.ok()?;
    let began = before.number();
    let mut round = |number: usize| -> Result<bool> {
        let start = format!(
            "setsid python3 -c \"$0\" \"$@\" </dev/null >/dev/null 2>&1 & echo {number} >>/root/log"
        );
        let mut args = vec!["sh", "-c", &start, RACE];
        args.extend(PLACES);
        crab.turn(&sandbox, &args)?.0.ok()?;
        canary.check("raced: captured")?;
        let turn = began.to_string();
        let said = crab.run(&["rollback", &sandbox.sandbox_id(), "--turn", &turn])?;
        canary.check("raced: rolled back")?;
        Ok(said.status == 0)
    };
    for number in 0..rounds {
        ensure!(round(number)?, "no way back from a process of its own");
    }
    // The root as the host has it, whoever runs in it.
    let merged = PathBuf::from("/run/containerd/io.containerd.runtime.v2.task")
        .join(client.namespace())
        .join(sandbox.id())
        .join("rootfs");
    ensure!(
        merged.join("root/race").is_dir(),
        "{} is no root",
        merged.display()
    );
    let stop = AtomicBool::new(false);
    let back = thread::scope(|scope| -> Result<usize> {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            let (one, other) = (merged.join("root/race/dir"), merged.join("root/race/link"));
            while !stop.load(Ordering::Relaxed) {
                // It is not there while the root is exchanged.
                let _ = renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE);
            }
        });
        let mut back = 0;
        for number in 0..rounds {
            // What never stands still may have no checkpoint, and then no way back.
            back += usize::from(round(number)?);
        }
        Ok(back)
    })?;
    crab.rollback(&sandbox, began)?;
    let said = sandbox.sh_ok("cat /root/race/dir/secret /dev/shm/race/dir/secret; ls /root")?;
    ensure!(
        said == "inside\ninside\nrace",
        "it is not what it was: {said}"
    );
    canary.check("raced: afterwards")?;
    canary.check_store(&sandbox)?;
    Ok(back)
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
