// SPDX-License-Identifier: Apache-2.0

//! SIGKILL at random instants to whoever works on a sandbox.

use std::{
    collections::BTreeMap,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use super::{Kind, Subject};
use crate::{
    client::RunOptions,
    command::Running,
    processes,
    proof::Chance,
    sandbox::State,
    testbed::{Testbed, poll},
};

const LIMIT: Duration = Duration::from_secs(30);
/// For how long a victim that lives for a moment is waited for.
const SPARE: Duration = Duration::from_millis(300);
/// So many checkpoints the shim keeps, so that it removes others all the time.
const KEEP: &str = "dev.crab.retention.keep=6";
/// After so many kills, older checkpoints are gone back to.
const OFTEN: usize = 50;
/// A round in which no victim is met is played again, so often at most in a row.
const MISSES: usize = 40;

/// What is going on when the kill comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Act {
    Files,
    Full,
    Rollback,
    Restore,
    Collect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    Shim,
    Crabd,
    Runc,
    Criu,
    Crab,
}

impl Victim {
    fn name(self) -> &'static str {
        match self {
            Self::Shim => "shim",
            Self::Crabd => "crabd",
            Self::Runc => "runc",
            Self::Criu => "criu",
            Self::Crab => "crab",
        }
    }
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Killed {
    /// How many processes were killed.
    pub kills: usize,
    /// How many of each program.
    pub by: BTreeMap<&'static str, usize>,
    /// What is lost, a line each.
    pub lost: Vec<String>,
}

/// The sandbox, and how long its acts take when nobody is killed.
struct Campaign {
    subject: Subject,
    chance: Chance,
    took: BTreeMap<Act, Duration>,
}

/// Kills so many. The same seed gives the same acts, victims and delays.
pub fn kills(testbed: &Testbed, count: usize, seed: u64) -> Result<Killed> {
    let options = RunOptions::without_bytecode().flags(["--annotation", KEEP]);
    let mut campaign = Campaign {
        subject: Subject::start(testbed, options)?,
        chance: Chance::new(seed),
        took: BTreeMap::new(),
    };
    campaign.measure()?;
    let mut killed = Killed::default();
    let mut misses = 0;
    while killed.kills < count {
        let (act, victim) = campaign.choose();
        let hit = campaign.round(act, victim).with_context(|| {
            format!("seed {seed}, kill {}: {victim:?} in {act:?}", killed.kills)
        })?;
        misses = if hit { 0 } else { misses + 1 };
        ensure!(misses < MISSES, "{misses} rounds without a victim");
        if !hit {
            continue;
        }
        killed.kills += 1;
        *killed.by.entry(victim.name()).or_default() += 1;
        if killed.kills.is_multiple_of(OFTEN) {
            campaign.go_back()?;
            eprintln!(
                "{} killed, {} lost",
                killed.kills,
                campaign.subject.lost().len()
            );
        }
    }
    campaign.go_back()?;
    killed.lost = campaign.subject.lost().to_vec();
    Ok(killed)
}

impl Campaign {
    /// How long each act takes.
    fn measure(&mut self) -> Result<()> {
        let mut took = BTreeMap::new();
        let mut lap = |act, work: &mut dyn FnMut() -> Result<()>| -> Result<()> {
            let begin = Instant::now();
            work()?;
            took.insert(act, begin.elapsed());
            Ok(())
        };
        let subject = &mut self.subject;
        lap(Act::Files, &mut || subject.turn(Kind::Files).map(drop))?;
        let mut turn = 0;
        lap(Act::Full, &mut || {
            turn = subject.turn(Kind::Full)?;
            Ok(())
        })?;
        subject.turn(Kind::Full)?;
        lap(Act::Rollback, &mut || subject.roll_back(turn))?;
        subject.crash()?;
        lap(Act::Collect, &mut || subject.crab(&["gc"]).map(drop))?;
        let now = subject.now();
        lap(Act::Restore, &mut || subject.restore(&[now]))?;
        self.took = took;
        Ok(())
    }

    fn choose(&mut self) -> (Act, Victim) {
        let acts = [
            (3, Act::Files),
            (4, Act::Full),
            (2, Act::Rollback),
            (2, Act::Restore),
            (1, Act::Collect),
        ];
        let act = self.chance.weighted(&acts);
        let victims: &[(u64, Victim)] = match act {
            Act::Files => &[(3, Victim::Shim), (2, Victim::Crabd), (1, Victim::Runc)],
            Act::Full => &[
                (4, Victim::Shim),
                (2, Victim::Crabd),
                (1, Victim::Runc),
                (2, Victim::Criu),
            ],
            Act::Rollback | Act::Restore => &[
                (4, Victim::Shim),
                (1, Victim::Crabd),
                (2, Victim::Runc),
                (1, Victim::Criu),
                (1, Victim::Crab),
            ],
            Act::Collect => &[(1, Victim::Crab)],
        };
        (act, self.chance.weighted(victims))
    }

    /// Whether the victim was met.
    fn round(&mut self, act: Act, victim: Victim) -> Result<bool> {
        match act {
            Act::Files => self.in_a_turn(Kind::Files, act, victim),
            Act::Full => self.in_a_turn(Kind::Full, act, victim),
            Act::Rollback => self.in_a_rollback(victim),
            Act::Restore => self.when_gone(&["restore"], act, victim),
            Act::Collect => self.when_gone(&["gc", "--keep", "2"], act, victim),
        }
    }

    /// Kills at an instant of what has just begun; false if there is nobody to be killed.
    fn kill(&mut self, act: Act, victim: Victim, running: &mut Running) -> Result<bool> {
        let most = self.took[&act].as_micros() as u64 + 1;
        sleep(Duration::from_micros(self.chance.within(0..most)));
        let sandbox = self.subject.sandbox();
        let deadline = Instant::now() + SPARE;
        loop {
            let there = match victim {
                Victim::Shim => sandbox.shim().ok(),
                Victim::Crabd => processes::crabd(),
                Victim::Runc => processes::named("runc").pop(),
                Victim::Criu => processes::named("criu").pop(),
                Victim::Crab => (!running.has_ended()?).then(|| running.pid()),
            };
            if let Some(pid) = there
                && processes::kill(pid)?
            {
                return Ok(true);
            }
            if Instant::now() > deadline {
                return Ok(false);
            }
            sleep(Duration::from_micros(500));
        }
    }

    fn in_a_turn(&mut self, kind: Kind, act: Act, victim: Victim) -> Result<bool> {
        let before = self.subject.now();
        let (shim, inside) = self.who_is_there()?;
        let last = self.subject.last_turn()?;
        let safe = self.subject.newest()?;
        let (mut exec, after) = self.subject.turn_only(kind)?;
        let hit = self.kill(act, victim, &mut exec)?;
        let said = exec.wait()?;
        match victim {
            _ if !hit => {
                said.ok()?;
                self.subject.wait_for(last, after)?;
            }
            Victim::Shim => {
                self.subject.wait_for_the_end(shim, &inside)?;
                self.subject.recover(&[before, after])?;
            }
            Victim::Crabd => {
                said.ok()?;
                self.subject.wait_for(last, after)?;
                self.subject.look()?;
            }
            // What the command did of it nobody knows.
            _ => self.start_over(&[before, after], safe)?,
        }
        Ok(hit)
    }

    fn in_a_rollback(&mut self, victim: Victim) -> Result<bool> {
        let before = self.subject.now();
        let known = self.subject.checkpoints();
        let target = self.chance.of(&known);
        let after = self.subject.state_of(target)?;
        let safe = self.subject.newest()?;
        let (shim, inside) = self.who_is_there()?;
        let text = target.to_string();
        let verb = ["rollback", "--turn", &text, "--cold"];
        let verb = match self.chance.once_in(2) {
            true => &verb[..],
            false => &verb[..3],
        };
        let mut running = self.subject.crab_only(verb).start()?;
        let hit = self.kill(Act::Rollback, victim, &mut running)?;
        running.wait()?;
        if hit && victim == Victim::Shim {
            self.subject.wait_for_the_end(shim, &inside)?;
            self.subject.recover(&[before, after])?;
        } else {
            // Wherever it got to.
            self.start_over(&[before, after], safe)?;
        }
        Ok(hit)
    }

    /// Something that is done to a sandbox that is gone.
    fn when_gone(&mut self, verb: &[&str], act: Act, victim: Victim) -> Result<bool> {
        let now = self.subject.now();
        let safe = self.subject.newest()?;
        self.subject.crash()?;
        let mut running = self.subject.crab_only(verb).start()?;
        let hit = self.kill(act, victim, &mut running)?;
        running.wait()?;
        self.start_over(&[now], safe)?;
        Ok(hit)
    }

    fn who_is_there(&self) -> Result<(u32, Vec<u32>)> {
        let sandbox = self.subject.sandbox();
        Ok((sandbox.shim()?, sandbox.processes()?))
    }

    /// Ends whatever is going on, and brings the sandbox back as at a checkpoint.
    fn start_over(&mut self, states: &[u64], checkpoint: u64) -> Result<()> {
        // What a killed command has left may go on.
        poll("its commands have ended", LIMIT, || {
            let left = ["ctr", "runc"].map(processes::named).concat();
            Ok(left.is_empty().then_some(()))
        })?;
        let sandbox = self.subject.sandbox();
        if sandbox.state()? == State::Running {
            self.subject.crash()?;
        } else {
            if let Ok(shim) = sandbox.shim() {
                processes::kill(shim)?;
                processes::wait_gone(shim, LIMIT)?;
            }
            sandbox.wait_until_cleaned_up(&[])?;
        }
        self.subject.fsck()?;
        self.subject.check_store(states, true)?;
        self.subject.restore_to(checkpoint)
    }

    /// Older checkpoints come back as well.
    fn go_back(&mut self) -> Result<()> {
        for _ in 0..2 {
            // A removal may be under way, behind what came last: it is waited for.
            self.subject.crab(&["gc"])?;
            self.subject.check_store(&[self.subject.now()], false)?;
            let known = self.subject.checkpoints();
            let target = self.chance.of(&known);
            self.subject.roll_back(target)?;
        }
        self.subject.serve()
    }
}
