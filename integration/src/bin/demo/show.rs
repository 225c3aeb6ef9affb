// SPDX-License-Identifier: Apache-2.0

//! The session under Crab, with one client: turns, two rollbacks, a crash.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};
use crab_integration::{
    Client, Crab, DEBIAN, Events, RunOptions, Sandbox, State, Testbed, processes,
};

use crate::{
    report::{Row, Story, size, table},
    session::{
        AFTER_CRASH, AFTER_ROLLBACK, AFTER_SECOND, COUNTER_IS_TWO, SECOND_TARGET, SESSION, Step,
    },
};

/// What was seen.
#[derive(Default)]
pub(crate) struct Seen {
    /// The turns of the session, before any rollback.
    pub(crate) session: Vec<Row>,
    /// What the store held after them.
    pub(crate) bytes: u64,
    /// Turns of another class than the right one, after rollbacks included.
    pub(crate) misclassified: usize,
    pub(crate) rollback_ok: bool,
    pub(crate) restore_ok: bool,
}

impl Seen {
    pub(crate) fn all_good(&self) -> bool {
        self.misclassified == 0 && self.rollback_ok && self.restore_ok
    }
}

/// One run: the sandbox, and what is held against it.
struct Show<'a> {
    story: Story,
    crab: Crab,
    events: &'a Events,
    sandbox: Sandbox,
    seen: Seen,
    /// Whether everything of the present part is as it has to be.
    good: bool,
}

enum Part {
    Session,
    Rollback,
    Crash,
}

/// Runs everything with one client; what could be seen until a fault is in `seen`
/// even if the rest could not be shown.
pub(crate) fn show(story: Story, testbed: &Testbed, events: &Events, client: Client) -> Seen {
    story.title(format!("{}: an agent's session under Crab", client.name()));
    let options = RunOptions::new().id(format!("demo-{}", client.name()));
    let sandbox = match client.run(DEBIAN, options) {
        Ok(sandbox) => sandbox,
        Err(error) => {
            story.check(false, format!("start a sandbox: {error:#}"));
            return Seen::default();
        }
    };
    let mut show = Show {
        story,
        crab: testbed.crab(),
        events,
        sandbox,
        seen: Seen::default(),
        good: true,
    };
    for part in [Part::Session, Part::Rollback, Part::Crash] {
        show.good = true;
        let done = match part {
            Part::Session => show.session(),
            Part::Rollback => show.roll_back(),
            Part::Crash => show.crash_and_restore(),
        };
        if let Err(error) = done {
            show.check(false, format!("{error:#}"));
            break;
        }
    }
    show.seen
}

impl Show<'_> {
    fn check(&mut self, ok: bool, what: impl AsRef<str>) {
        self.good &= ok;
        self.story.check(ok, what);
    }

    /// Runs steps as turns and shows them. What they print, how they end and
    /// their classes are checked.
    fn steps(&mut self, steps: &[Step]) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        let done = self.run_steps(steps, &mut rows);
        self.story.line("");
        table(self.story, &rows);
        done.map(|()| rows)
    }

    fn run_steps(&mut self, steps: &[Step], rows: &mut Vec<Row>) -> Result<()> {
        for step in steps {
            let (said, turn) = self
                .crab
                .turn(&self.sandbox, &["bash", "-c", step.script])
                .with_context(|| step.what.to_owned())?;
            if said.status != step.exit {
                bail!(
                    "{}: it ended with {} and not {}: {} {}",
                    step.what,
                    said.status,
                    step.exit,
                    said.stdout.trim(),
                    said.stderr.trim()
                );
            }
            if let Some(wanted) = step.prints {
                let said = said.stdout.trim().replace('\n', ", ");
                self.check(said == wanted, format!("{}: {said}", step.what));
            }
            let row = Row { step: *step, turn };
            if !row.is_right() {
                let record = &row.turn.record;
                let what = format!(
                    "turn {} ({}) is {} and not {}: {}",
                    record.turn, step.what, record.class, step.class, record.reason
                );
                self.check(false, what);
                self.seen.misclassified += 1;
            }
            if let Some(why) = row
                .turn
                .failed
                .as_ref()
                .or(row.turn.record.degraded.as_ref())
            {
                let what = format!("turn {} has no whole checkpoint: {why}", row.turn.number());
                self.check(false, what);
            }
            rows.push(row);
        }
        Ok(())
    }

    fn session(&mut self) -> Result<()> {
        let id = self.sandbox.sandbox_id();
        self.story.line(format!(
            "{} runs {} ({id}): sleep infinity\n",
            self.sandbox.client().name(),
            self.sandbox.name()
        ));
        let rows = self.steps(&SESSION)?;
        self.seen.bytes = bytes_in(&self.sandbox.store())?;
        let raw: u64 = rows.iter().map(|row| row.turn.record.cost.bytes_raw).sum();
        self.story.line(format!(
            "\n{} turns: {} in the store (packs, manifests, journal), {} before dedup and \
             compression",
            rows.len(),
            size(self.seen.bytes),
            size(raw)
        ));
        self.seen.session = rows;
        Ok(())
    }

    fn roll_back(&mut self) -> Result<()> {
        let target = self.turn_of_session(COUNTER_IS_TWO)?;
        self.story
            .title(format!("back to turn {target}, when the counter was 2"));
        self.roll_back_to(target)?;
        let rows = self.steps(&AFTER_ROLLBACK)?;
        let second = rows.get(SECOND_TARGET).context("a turn is missing")?;
        let second = second.turn.number();

        self.story
            .title(format!("back to turn {second}, before these files"));
        self.roll_back_to(second)?;
        self.steps(&AFTER_SECOND)?;
        self.seen.rollback_ok = self.good;
        Ok(())
    }

    fn turn_of_session(&self, place: usize) -> Result<u64> {
        let row = self.seen.session.get(place).context("a turn is missing")?;
        Ok(row.turn.number())
    }

    fn roll_back_to(&mut self, turn: u64) -> Result<()> {
        let said = self.crab.rollback(&self.sandbox, turn)?;
        let took = said["took_us"].as_u64().unwrap_or_default();
        self.story.line(format!(
            "crab rollback {} --turn {turn}: checkpoint {}, in {} ms",
            self.sandbox.name(),
            said["checkpoint"],
            took / 1000
        ));
        self.still_running("after the rollback")?;
        let exits = self.events.exits_of_init(&self.sandbox)?;
        self.check(exits == 0, "containerd has seen no exit of the init");
        Ok(())
    }

    /// The same container, by its client's word.
    fn still_running(&mut self, when: &str) -> Result<()> {
        let client = self.sandbox.client();
        let (list, id) = match client {
            Client::Ctr { .. } => ("ctr task ls", client.tool(["task", "ls"])),
            Client::Docker => (
                "docker ps",
                client.tool(["ps", "--no-trunc", "--format", "{{.ID}} {{.State}}"]),
            ),
        };
        let listed = id.run()?.ok()?.stdout.to_lowercase();
        let line = listed
            .lines()
            .find(|line| line.starts_with(self.sandbox.id()))
            .unwrap_or_default();
        let running = line.contains("running") && self.sandbox.state()? == State::Running;
        self.check(
            running,
            format!(
                "{list} {when}: {} is running",
                &self.sandbox.id()[..self.sandbox.id().len().min(12)]
            ),
        );
        Ok(())
    }

    fn crash_and_restore(&mut self) -> Result<()> {
        self.story
            .title("SIGKILL to the shim and to everything in the sandbox");
        let shim = self.sandbox.shim()?;
        let killed = self.sandbox.crash()?;
        self.story.line(format!(
            "killed shim {shim}, in all {} processes",
            killed.len()
        ));
        let dead = !killed.iter().any(|pid| processes::is_alive(*pid));
        self.check(dead, "nothing of it is left running");
        let gone = self.crab.ps_of(&self.sandbox)?.state;
        self.check(gone != "running", format!("crab ps: it is {gone}"));

        let said = self.crab.restore(&self.sandbox, None)?;
        let took = said["took_us"].as_u64().unwrap_or_default();
        self.story.line(format!(
            "crab restore {}: turn {}, in {} ms",
            self.sandbox.name(),
            said["turn"],
            took / 1000
        ));
        self.still_running("after the restore")?;
        self.steps(&AFTER_CRASH)?;
        self.seen.restore_ok = self.good;
        Ok(())
    }
}

/// The length of all files in a directory.
pub(crate) fn bytes_in(dir: &Path) -> Result<u64> {
    let read = || format!("read {}", dir.display());
    let mut bytes = 0;
    for entry in fs::read_dir(dir).with_context(read)? {
        let entry = entry.with_context(read)?;
        let meta = entry.metadata().with_context(read)?;
        bytes += if meta.is_dir() {
            bytes_in(&entry.path())?
        } else {
            meta.len()
        };
    }
    Ok(bytes)
}
