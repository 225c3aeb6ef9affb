// SPDX-License-Identifier: Apache-2.0

//! Copies that were made in advance.

use anyhow::{Context, Result, ensure};
use crab_integration::{Client, Counter, Crab, DEBIAN, RunOptions, Sandbox, State, Testbed};
use crab_store::Class;
use serde_json::Value;

/// The names of copies, and which of them were made in advance.
fn made(said: &Value) -> Result<Vec<(&str, bool)>> {
    let all = said["forks"].as_array().context("no forks")?.iter();
    all.map(|fork| {
        ensure!(fork["error"].is_null(), "{fork}");
        let name = fork["name"].as_str().context("no name")?;
        Ok((name, fork["warm"] == true))
    })
    .collect()
}

fn notes(crab: &Crab, of: &Sandbox) -> Result<usize> {
    let said = crab.json(&["ps"])?;
    let note = format!("stands by for crab fork {}", of.sandbox_id());
    let rows = said["sandboxes"].as_array().context("no sandboxes")?.iter();
    Ok(rows.filter(|row| row["note"] == note.as_str()).count())
}

#[test]
fn copies_that_stand_by_go_on_as_those_of_the_next_fork() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        // Docker does not rename what is in a network that it has not got, as here.
        let options = match client {
            Client::Docker => RunOptions::new().flags(["--network", "none"]),
            Client::Ctr { .. } => RunOptions::new(),
        };
        let sandbox = client.run(DEBIAN, options)?;
        let id = sandbox.sandbox_id();
        crab.turn_of(&sandbox, Class::Files, "echo 1 >/root/f")?;
        let counter = Counter::start(&crab, &sandbox, 1)?;
        assert_eq!(counter.ask()?.0, 1);
        let warm = crab.fork(client, &id, &["--warm", "3"])?;
        assert_eq!(warm.said["spares"], 3);
        for spare in &warm.made {
            assert_eq!(spare.state()?, State::Paused);
        }
        assert_eq!(notes(&crab, &sandbox)?, 3);
        // There are enough.
        let again = crab.fork(client, &id, &["--warm", "3"])?;
        assert_eq!((again.made.len(), &again.said["removed"]), (0, &0.into()));

        // One by any name, one by its own, two of which one has to be made.
        let one = crab.fork(client, &id, &[])?;
        assert!(made(&one.said)?[0].1, "{}", one.said);
        let name = match client {
            Client::Docker => format!("{}-chosen", sandbox.name()),
            Client::Ctr { .. } => warm.made[2].name().to_owned(),
        };
        let two = crab.fork(client, &id, &["--name", &name])?;
        assert_eq!(made(&two.said)?, [(name.as_str(), true)]);
        let rest = crab.fork(client, &id, &["--count", "2"])?;
        let ways: Vec<bool> = made(&rest.said)?.iter().map(|it| it.1).collect();
        assert_eq!(ways, [true, false], "{}", rest.said);
        for copy in one.made.iter().chain(&two.made).chain(&rest.made) {
            assert_eq!(copy.state()?, State::Running);
            assert_eq!(copy.sh_ok("cat /root/f")?, "1");
            // Each has what the original had, and goes on with it.
            assert_eq!(Counter::of(&crab, copy).ask()?.0, 2);
            assert_eq!(crab.verify(copy, None)?["same"], true);
        }
        assert_eq!(notes(&crab, &sandbox)?, 0);
        assert_eq!(counter.ask()?.0, 2);

        // Of another state there are none, and those of this one give way to them.
        let _old = crab.fork(client, &id, &["--warm", "1"])?;
        crab.turn_of(&sandbox, Class::Files, "echo 2 >/root/f")?;
        let new = crab.fork(client, &id, &["--warm", "1"])?;
        assert_eq!(
            (&new.said["spares"], &new.said["removed"]),
            (&1.into(), &1.into())
        );
        // It may have got the name of the one before.
        assert_eq!(notes(&crab, &sandbox)?, 1);

        // One that somebody has let go on is his.
        resume(&new.made[0])?;
        let other = crab.fork(client, &id, &[])?;
        assert!(!made(&other.said)?[0].1, "{}", other.said);
        assert_eq!(other.made[0].sh_ok("cat /root/f")?, "2");
        let last = crab.fork(client, &id, &["--warm", "1"])?;
        resume(&last.made[0])?;
        let none = crab.fork(client, &id, &["--warm", "0"])?;
        assert_eq!(last.made[0].state()?, State::Running);
        assert_eq!(none.said["spares"], 0);
        assert_eq!(new.made[0].state()?, State::Running);
    }
    Ok(())
}

fn resume(sandbox: &Sandbox) -> Result<()> {
    let verb: &[&str] = match sandbox.client() {
        Client::Docker => &["unpause"],
        Client::Ctr { .. } => &["task", "resume"],
    };
    let args = verb.iter().copied().chain([sandbox.name()]);
    sandbox.client().tool(args).run()?.ok()?;
    Ok(())
}
