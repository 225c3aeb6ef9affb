// SPDX-License-Identifier: Apache-2.0

//! Trees as a sandbox could make them to get out of itself, or to break who captures it: each is
//! captured, destroyed, and brought back by every way that there is. It has to be exactly what it
//! was, and a directory of the host that half of it leads to must not have been looked into.

mod canary;
mod race;

use anyhow::{Context, Result, ensure};

pub use self::canary::Canary;
pub use self::race::race;
use crate::{Client, Crab, DEBIAN, RunOptions, Sandbox};

const MAKE: &str = include_str!("make.py");
const TURN_OVER: &str = include_str!("turn_over.py");
const LOOK: &str = include_str!("look.py");

/// One kind of tree.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The function of `make.py`.
    pub kind: &'static str,
    /// How much of it, where that can be chosen.
    pub much: u32,
    /// Whether it is made as root with all capabilities.
    pub privileged: bool,
    /// Where.
    places: &'static [&'static str],
}

const BOTH: &[&str] = &["/root/tree", "/dev/shm/tree"];
/// Where there is room.
const DISK: &[&str] = &["/root/tree"];

/// All kinds. `many` files are in the largest tree.
pub fn cases(many: u32) -> Vec<Case> {
    let case = |kind, much, privileged, places| Case {
        kind,
        much,
        privileged,
        places,
    };
    vec![
        case("links", 0, false, BOTH),
        case("special", 0, false, BOTH),
        case("names", 0, false, BOTH),
        case("deep", 60, false, BOTH),
        case("hardlinks", 0, false, BOTH),
        case("sparse", 0, false, BOTH),
        case("attributes", 0, false, BOTH),
        case("attributes", 0, true, BOTH),
        case("immutable", 0, true, BOTH),
        case("many", many, false, DISK),
    ]
}

impl Case {
    /// What to call it.
    pub fn name(&self) -> String {
        let by = if self.privileged { ", privileged" } else { "" };
        format!("{}{by}", self.kind)
    }

    /// Makes it and brings it back by each way. Tells at which of them it was not what it was.
    ///
    /// # Errors
    /// When a way cannot be gone at all.
    pub fn there_and_back(
        &self,
        client: Client,
        crab: &Crab,
        canary: &mut Canary,
    ) -> Result<Vec<String>> {
        let mut options = RunOptions::without_bytecode();
        if self.privileged {
            options = options.flags(["--privileged"]);
        }
        let sandbox = client.run(DEBIAN, options)?;
        let name = self.name();
        let dir = canary.dir().display().to_string();
        let much = self.much.to_string();
        let turn = |script: &str, first: &[&str]| -> Result<u64> {
            let mut args = vec!["python3", "-c", script];
            args.extend_from_slice(first);
            args.extend_from_slice(self.places);
            let (said, turn) = crab.turn(&sandbox, &args)?;
            ensure!(said.status == 0, "{name}: {}", said.stderr);
            ensure!(turn.published, "{name}: turn {} is lost", turn.number());
            Ok(turn.number())
        };
        let mut inexact = Vec::new();
        let made = turn(MAKE, &[self.kind, &dir, &much])?;
        canary.check(&format!("{name}: captured"))?;
        let before = self.look(&sandbox)?;
        let mut compare = |canary: &mut Canary, way: &str| -> Result<()> {
            canary.check(&format!("{name}: {way}"))?;
            let after = self.look(&sandbox)?;
            if after != before {
                inexact.push(format!(
                    "{name}, {way}: {}",
                    first_difference(&before, &after)
                ));
            }
            Ok(())
        };
        let same = crab.verify(&sandbox, Some(made))?;
        ensure!(same["same"] == true, "{name}: {same}");
        compare(canary, "verified")?;

        turn(TURN_OVER, &[&dir])?;
        canary.check(&format!("{name}: destroyed"))?;
        crab.rollback(&sandbox, made)
            .with_context(|| format!("{name}: roll back"))?;
        compare(canary, "rolled back")?;

        turn(
            "import os, sys\nfor top in sys.argv[1:]: open(top + '/new', 'w').write('x')",
            &[],
        )?;
        crab.rollback(&sandbox, made)
            .with_context(|| format!("{name}: roll back a little"))?;
        compare(canary, "rolled back a little")?;

        turn(TURN_OVER, &[&dir])?;
        crab.rollback_cold(&sandbox, made)
            .with_context(|| format!("{name}: roll back cold"))?;
        compare(canary, "rolled back cold")?;

        sandbox.crash()?;
        crab.restore(&sandbox, Some(made))
            .with_context(|| format!("{name}: restore"))?;
        compare(canary, "restored")?;
        canary.check_store(&sandbox)?;
        Ok(inexact)
    }

    /// What is there, as a program in the sandbox sees it.
    fn look(&self, sandbox: &Sandbox) -> Result<String> {
        let mut args = vec!["python3", "-c", LOOK];
        args.extend_from_slice(self.places);
        let said = sandbox.exec(&args)?;
        ensure!(said.status == 0, "{}: {}", self.name(), said.stderr);
        Ok(said.stdout)
    }
}

fn first_difference(before: &str, after: &str) -> String {
    let mut lines = before.lines().zip(after.lines());
    let differs = lines.find(|(before, after)| before != after);
    let clip = |line: &str| line.chars().take(300).collect::<String>();
    match differs {
        Some((before, after)) => format!("{} became {}", clip(before), clip(after)),
        None => format!(
            "{} lines became {}",
            before.lines().count(),
            after.lines().count()
        ),
    }
}
