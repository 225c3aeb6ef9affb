// SPDX-License-Identifier: Apache-2.0

//! A live sandbox is compared with its checkpoints: what differs is told, and all of it.

use anyhow::{Context, Result, ensure};
use crab_integration::{DEBIAN, ExecOptions, RunOptions, Testbed, poll, sleeper};
use crab_store::Class;
use serde_json::Value;

use crate::{
    LIMIT,
    server::{ask, ask_as_turn, start_server},
    sleepers,
};

/// What differs, as lines.
fn told(found: &Value) -> Result<Vec<String>> {
    let list = |name: &str| -> Result<Vec<Value>> {
        let list = found[name].as_array();
        Ok(list.with_context(|| format!("no {name}: {found}"))?.clone())
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut lines: Vec<String> = list("differences")?
        .iter()
        .map(|it| {
            let what = match text(&it["what"]) {
                what if what.is_empty() => what,
                what => format!(": {what}"),
            };
            format!("{} {}{what}", text(&it["change"]), text(&it["path"]))
        })
        .collect();
    lines.extend(list("process_differences")?.iter().map(|it| {
        let what: Vec<String> = it["what"]
            .as_array()
            .into_iter()
            .flatten()
            .map(text)
            .collect();
        format!(
            "{} {} {}",
            text(&it["change"]),
            text(&it["comm"]),
            what.join("; ")
        )
    }));
    Ok(lines)
}

#[test]
fn what_differs_from_a_checkpoint_is_told_exactly() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::without_bytecode())?;
        crab.turn_of(
            &sandbox,
            Class::Files,
            "echo kept >/root/kept; echo m >/dev/shm/m",
        )?;
        let found = crab.verify(&sandbox, None)?;
        ensure!(found["same"] == true, "{found}");
        let changes = "echo new >/root/new; rm /etc/issue; chmod 700 /root/kept; \
                       : >>/etc/hostname.d 2>/dev/null; rm -f /etc/hostname.d; echo n >/dev/shm/m";
        let two = crab.turn_of(&sandbox, Class::Files, changes)?;
        let found = crab.verify(&sandbox, Some(two.number() - 1))?;
        assert_eq!(
            told(&found)?,
            [
                "removed /etc/issue",
                "changed /root/kept: mode",
                "added /root/new",
                "changed /dev/shm/m: content, time",
            ],
            "{found}"
        );
        assert_eq!(found["paths_differing"], 4);
        let found = crab.verify(&sandbox, None)?;
        ensure!(
            found["same"] == true && found["checkpoint"] == two.number(),
            "{found}"
        );

        // A turn that goes on is compared with what was before it, and goes on.
        let script = "echo x >/root/open; exec sleep 1000";
        let running = sandbox.exec_start(&["sh", "-c", script], &ExecOptions::new())?;
        poll("the exec runs", LIMIT, || {
            Ok((sleepers(&sandbox)? == ["1000"]).then_some(()))
        })?;
        let found = crab.verify(&sandbox, None)?;
        assert_eq!(
            told(&found)?,
            ["added /root/open", "started sleep "],
            "{found}"
        );
        assert_eq!(sleepers(&sandbox)?, ["1000"]);
        drop(running);
    }
    Ok(())
}

#[test]
fn processes_are_compared_by_what_they_are_and_hold() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::without_bytecode())?;
        start_server(&crab, &sandbox)?;
        let (_, first) = ask_as_turn(&crab, &sandbox, Class::Full)?;
        let found = crab.verify(&sandbox, None)?;
        ensure!(
            found["same"] == true && found["memory"] == "same",
            "{found}"
        );
        assert_eq!(found["processes"], 1);
        let (_, second) = ask_as_turn(&crab, &sandbox, Class::Full)?;
        crab.turn_of(&sandbox, Class::Processes, &sleeper(1000))?;
        let found = crab.verify(&sandbox, Some(first))?;
        assert_eq!(found["memory"], "differs", "{found}");
        let lines = told(&found)?;
        let has = |wanted: &str| lines.iter().any(|line| line.starts_with(wanted));
        ensure!(
            has("changed python3 ") && has("started sleep ") && has("changed /root/log"),
            "{lines:?}"
        );

        // What was restored is what was captured, before and after it runs on.
        for turn in [first, second, first] {
            let done = crab.rollback_verified(&sandbox, turn)?;
            assert_eq!(done["warm"], false, "{done}");
            assert_eq!(done["verified"]["memory"], "same", "{done}");
        }
        let found = crab.verify(&sandbox, Some(second))?;
        assert_eq!(found["memory"], "differs", "{found}");
        assert_eq!(ask(&sandbox)?, 2);
    }
    Ok(())
}
