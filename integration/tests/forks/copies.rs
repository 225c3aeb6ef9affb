// SPDX-License-Identifier: Apache-2.0

//! What is in a copy, and whose it is.

use std::{collections::BTreeSet, fs};

use anyhow::{Context, Result, ensure};
use crab_integration::{BUSYBOX, Counter, DEBIAN, RunOptions, Sandbox, State, Testbed, processes};
use crab_store::{Class, JournalRecord, TurnId};
use serde_json::{Value, json};

/// What only one sandbox may have: its network namespace, and its cgroup.
fn own(sandbox: &Sandbox) -> Result<[String; 2]> {
    let pid = sandbox.pid()?;
    let network = fs::read_link(format!("/proc/{pid}/ns/net"))?;
    let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    for line in cgroups.lines() {
        // Those of controllers that no container gets are the host's root.
        let path = line.splitn(3, ':').nth(2).unwrap_or_default();
        ensure!(
            path.contains(sandbox.id()) || path == "/",
            "{} is in {line}",
            sandbox.name()
        );
    }
    Ok([network.display().to_string(), cgroups])
}

#[test]
fn copies_go_on_each_for_itself_and_outlive_the_original() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::new())?;
        crab.turn_of(
            &sandbox,
            Class::Files,
            "echo kept >/root/kept; echo x >/dev/shm/x",
        )?;
        let counter = Counter::start(&crab, &sandbox, 1)?;
        let (_, one) = counter.ask()?;
        assert_eq!(counter.ask()?.0, 2);

        // As it is now, and as it was.
        let now = crab.fork(client, &sandbox.sandbox_id(), &["--count", "2"])?;
        let then = format!("{}@{}", sandbox.sandbox_id(), one.number());
        let then = crab.fork(client, &then, &[])?;
        assert_eq!((&now.said["processes"], now.made.len()), (&true.into(), 2));
        let [first, second] = &now.made[..] else {
            unreachable!("there are two");
        };
        let earlier = &then.made[0];
        let mut seen = BTreeSet::new();
        for (copy, count) in [(first, 2), (second, 2), (earlier, 1)] {
            assert_eq!(copy.state()?, State::Running);
            let counter = Counter::of(&crab, copy);
            assert_eq!(copy.sh_ok("cat /root/kept /dev/shm/x")?, "kept\nx");
            assert_eq!(counter.in_file()?, count);
            assert_eq!(counter.ask()?.0, count + 1);
            seen.insert(own(copy)?);
        }
        seen.insert(own(&sandbox)?);
        assert_eq!(seen.len(), 4, "{seen:?}");
        // None of that is the original's.
        assert_eq!(counter.ask()?.0, 3);
        assert_eq!(Counter::of(&crab, second).ask()?.0, 4);

        // A copy of a copy; then nothing is left of those before it.
        let at = format!("{}@0", first.sandbox_id());
        let below = crab.fork(client, &at, &[])?;
        let leaf = &below.made[0];
        assert_eq!(Counter::of(&crab, leaf).ask()?.0, 3);
        let store = [sandbox.store(), first.store()];
        sandbox.remove()?;
        now.made.into_iter().try_for_each(Sandbox::remove)?;
        for dir in store {
            fs::remove_dir_all(dir)?;
        }
        let turns = crab.json(&["tree", &leaf.sandbox_id()])?["turns"].take();
        assert_eq!(
            (&turns[0]["gone"], &turns[0]["turn"]),
            (&true.into(), &0.into())
        );
        assert_eq!(turns[1]["sandbox"], leaf.sandbox_id());
        assert_eq!(turns[1]["parent"]["sandbox"], turns[0]["sandbox"]);
        crab.json(&["gc", &leaf.sandbox_id(), "--keep", "1"])?;
        leaf.crash()?;
        crab.restore(leaf, None)?;
        let counter = Counter::of(&crab, leaf);
        assert_eq!(counter.ask()?.0, 4);
        let whole = crab.run(&["fsck", &leaf.sandbox_id()])?;
        assert_eq!(whole.status, 0, "{whole:?}");
        let ended = leaf.processes()?;
        below.made.into_iter().try_for_each(Sandbox::remove)?;
        ensure!(ended.iter().all(|pid| !processes::is_alive(*pid)));
    }
    Ok(())
}

#[test]
fn a_copy_without_processes_has_files_and_a_history_of_its_own() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        crab.turn_of(&sandbox, Class::Files, "echo 1 >/root/n")?;
        crab.turn_of(
            &sandbox,
            Class::Files,
            "echo 2 >/root/n; rm /root/n2 2>/dev/null; :",
        )?;
        let at = format!("{}@1", sandbox.sandbox_id());
        let forks = crab.fork(client, &at, &["--count", "3"])?;
        assert_eq!(forks.said["processes"], false);
        for (n, copy) in forks.made.iter().enumerate() {
            assert_eq!(copy.sh_ok("cat /root/n")?, "1");
            let script = format!("echo {n} >>/root/n");
            let turn = crab.turn_of(copy, Class::Files, &script)?;
            ensure!(turn.record.unobserved.is_none(), "{turn:?}");
            crab.turn_of(copy, Class::Files, "echo gone >/root/n")?;
            crab.rollback(copy, turn.number())?;
            assert_eq!(copy.sh_ok("cat /root/n")?, format!("1\n{n}"));
            crab.rollback(copy, 0)?;
            assert_eq!(copy.sh_ok("cat /root/n")?, "1");
            let events = crab.turns(copy)?.events;
            let from = events.iter().find_map(|record| match record {
                JournalRecord::Fork(fork) => Some((fork.from.to_string(), fork.turn)),
                _ => None,
            });
            assert_eq!(from, Some((sandbox.sandbox_id(), TurnId(1))));
        }
        assert_eq!(sandbox.sh_ok("cat /root/n")?, "2");
        // The same tree from wherever it is looked at: a branch for each.
        let tree = crab
            .run(&["tree", &forks.made[1].sandbox_id()])?
            .ok()?
            .stdout;
        assert_eq!(
            tree,
            crab.run(&["tree", &sandbox.sandbox_id()])?.ok()?.stdout
        );
        let turns = crab.json(&["tree", &sandbox.sandbox_id()])?["turns"].take();
        let turns = turns.as_array().context("there are no turns")?;
        let is_node = |line: &&str| line.contains("* ");
        assert_eq!(tree.lines().filter(is_node).count(), turns.len(), "{tree}");
        for copy in &forks.made {
            let first = |turn: &&Value| turn["sandbox"] == copy.sandbox_id() && turn["turn"] == 0;
            let first = turns.iter().find(first).context("a copy is not in it")?;
            let parent = json!({"sandbox": sandbox.sandbox_id(), "turn": 1});
            assert_eq!(
                (&first["parent"], &first["trigger"]),
                (&parent, &"fork".into())
            );
            assert!(tree.contains(&format!("{}@0", copy.sandbox_id())), "{tree}");
        }
    }
    Ok(())
}
