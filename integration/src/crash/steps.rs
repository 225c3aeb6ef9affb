// SPDX-License-Identifier: Apache-2.0

//! Death at every step that Crab knows by name.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use crab_fault::{Part, Point};

use super::{Armed, Kind, Subject, state};
use crate::{
    client::{RunOptions, unique},
    command::Tool,
    processes,
    testbed::{BUSYBOX, CgroupMode, Testbed},
};

const LIMIT: Duration = Duration::from_secs(30);
/// How `env` or `crab` ends that was killed.
const KILLED: i32 = 128 + 9;

/// How many of the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All.
    All,
    /// One of so many, in the other cgroup mode others.
    OneOf(usize),
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Stepped {
    /// How many steps were the last.
    pub steps: usize,
    /// What is lost, a line each.
    pub lost: Vec<String>,
}

/// Dies at the steps.
pub fn steps(testbed: &Testbed, extent: Extent) -> Result<Stepped> {
    let (first, many) = match (extent, testbed.cgroup()) {
        (Extent::All, _) => (0, 1),
        (Extent::OneOf(many), CgroupMode::V1) => (0, many),
        (Extent::OneOf(many), CgroupMode::V2) => (many / 2, many),
    };
    let points = Point::ALL.iter().copied().skip(first).step_by(many);
    let mut subject = Subject::start(testbed, RunOptions::without_bytecode())?;
    let mut stepped = Stepped::default();
    for point in points {
        let known = subject.lost().len();
        strike(testbed, &mut subject, point).with_context(|| format!("death at {point}"))?;
        let lost = subject.lost()[known..].iter();
        stepped
            .lost
            .extend(lost.map(|lost| format!("{point}: {lost}")));
        stepped.steps += 1;
    }
    // Those of before all this come back as well.
    for turn in subject.checkpoints().into_iter().rev().take(3) {
        subject.roll_back(turn)?;
    }
    Ok(stepped)
}

fn strike(testbed: &Testbed, subject: &mut Subject, point: Point) -> Result<()> {
    match point.part() {
        Part::Capture | Part::Publish => in_a_turn(subject, point),
        Part::Collect => {
            in_a_removal(subject, point)?;
            in_a_removal_of_the_shim(subject, point)
        }
        Part::Repair => in_a_repair(subject, point),
        Part::Retire => in_making_room(testbed, point),
        Part::Warm => in_a_rollback(subject, point, &[]),
        Part::Cold => in_a_rollback(subject, point, &["--cold"]),
        Part::Restore => in_a_restore(subject, point),
    }
}

/// Has the shim die, which `act` has to lead to.
fn shim_dies<T>(
    subject: &mut Subject,
    lines: &[&str],
    act: impl FnOnce(&mut Subject) -> Result<T>,
) -> Result<T> {
    let (shim, inside) = (subject.sandbox().shim()?, subject.sandbox().processes()?);
    let armed = Armed::with(lines)?;
    let done = act(subject)?;
    processes::wait_gone(shim, LIMIT).context("its shim lives")?;
    armed.met()?;
    subject.wait_for_the_end(shim, &inside)?;
    Ok(done)
}

fn die(point: Point) -> String {
    format!("die {point}")
}

fn in_a_turn(subject: &mut Subject, point: Point) -> Result<()> {
    let before = subject.now();
    let after = shim_dies(subject, &[&die(point)], |subject| {
        let (turn, number) = subject.turn_only(Kind::Full)?;
        // Whatever became of it.
        let _ = turn.wait();
        Ok(number)
    })?;
    subject.recover(&[before, after])
}

/// Some checkpoints of which parts are in need still when they are not.
fn make_some(subject: &mut Subject) -> Result<()> {
    for _ in 0..4 {
        subject.turn(Kind::Files)?;
    }
    Ok(())
}

fn dies(tool: Tool) -> Result<()> {
    let said = tool.run()?;
    ensure!(
        said.status == KILLED,
        "it was not killed: {} {} {}",
        said.status,
        said.stdout,
        said.stderr
    );
    Ok(())
}

const GC: [&str; 3] = ["gc", "--keep", "1"];

/// Of a sandbox that is gone: `crab gc` removes itself.
fn in_a_removal(subject: &mut Subject, point: Point) -> Result<()> {
    make_some(subject)?;
    let now = subject.now();
    subject.crash()?;
    dies(subject.crab_that_dies(point, &GC))?;
    subject.fsck()?;
    subject.check_store(&[now], false)?;
    // The next one goes on with it.
    subject.crab(&GC)?;
    subject.recover(&[now])
}

/// Of a live one its shim does.
fn in_a_removal_of_the_shim(subject: &mut Subject, point: Point) -> Result<()> {
    make_some(subject)?;
    let now = subject.now();
    shim_dies(subject, &[&die(point)], |subject| {
        subject.crab_only(&GC).run()?;
        Ok(())
    })?;
    subject.recover(&[now])
}

/// Flips a bit of a file.
fn flip(path: &Path, at: impl FnOnce(&[u8]) -> Option<usize>) -> Result<()> {
    let mut bytes = fs::read(path).with_context(|| format!("read {}", path.display()))?;
    let at = at(&bytes).with_context(|| format!("{} is too short", path.display()))?;
    bytes[at] ^= 1;
    fs::write(path, bytes).with_context(|| format!("write {}", path.display()))
}

/// Where the last object of a pack ends: see the footer in the store's pack.rs.
fn end_of_objects(pack: &[u8]) -> Option<usize> {
    let at = pack.len().checked_sub(48)?;
    let end = u64::from_le_bytes(*pack.get(at..)?.first_chunk()?);
    usize::try_from(end).ok()?.checked_sub(1)
}

fn in_a_repair(subject: &mut Subject, point: Point) -> Result<()> {
    // With the image of the processes, which those after it have as well.
    subject.turn(Kind::Files)?;
    let victim = subject.turn(Kind::Files)?;
    subject.crab(&["tag", &victim.to_string(), "doomed"])?;
    make_some(subject)?;
    let now = subject.now();
    subject.crash()?;
    let store = subject.sandbox().store();
    let pack = subject.pack_of(victim)?;
    flip(&pack, end_of_objects)?;
    flip(&store.join("tags/doomed.json"), |bytes| {
        Some(bytes.len() / 2)
    })?;
    // In its first record.
    flip(&store.join("journal"), |bytes| {
        (bytes.len() > 100).then_some(60)
    })?;
    let found: serde_json::Value =
        serde_json::from_str(&subject.crab_only(&["fsck", "--json"]).run()?.stdout)?;
    let lost = &found["sandboxes"][0]["lost"];
    ensure!(
        *lost == serde_json::json!([victim]),
        "{lost} and not {victim} is hit: {found}"
    );
    subject.forget(victim);
    dies(subject.crab_that_dies(point, &["fsck", "--repair"]))?;
    // The next one goes on with it. What it ends with is whether there was still something
    // to be put aside.
    subject.crab_only(&["fsck", "--repair"]).run()?;
    subject.recover(&[now])
}

fn in_a_rollback(subject: &mut Subject, point: Point, how: &[&str]) -> Result<()> {
    // With the processes of the turn after it.
    let turn = subject.turn(Kind::Full)?;
    let target = subject.now();
    subject.turn(Kind::Files)?;
    let before = subject.now();
    let mut lines = vec![die(point)];
    // Only after a failure.
    let failure = match point {
        Point::WarmPutBack => Some(Point::WarmLook),
        Point::ColdUndo => Some(Point::ColdLaunch),
        _ => None,
    };
    if let Some(failure) = failure {
        lines.insert(0, failure.to_string());
    }
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    shim_dies(subject, &lines, |subject| {
        let turn = turn.to_string();
        let verb = [&["rollback", "--turn", &turn], how].concat();
        let said = subject.crab_only(&verb).run()?;
        ensure!(said.status != 0, "its shim lives: {}", said.stdout);
        Ok(())
    })?;
    // It is not recorded yet.
    subject.recover(&[before])?;
    subject.roll_back(turn)?;
    ensure!(
        subject.now() == target,
        "{} and not {target}",
        subject.now()
    );
    Ok(())
}

fn in_a_restore(subject: &mut Subject, point: Point) -> Result<()> {
    subject.turn(Kind::Full)?;
    let now = subject.now();
    subject.crash()?;
    let armed = Armed::with(&[&die(point)])?;
    let said = subject.crab_only(&["restore"]).run()?;
    armed.met()?;
    if said.status == 0 {
        // The wish was open still, and the container was started once more.
        return subject.look();
    }
    subject.sandbox().wait_until_cleaned_up(&[])?;
    subject.recover(&[now])
}

/// Another container of the same name, and with another writable layer.
fn in_making_room(testbed: &Testbed, point: Point) -> Result<()> {
    let (ctr, crab) = (testbed.ctr(), testbed.crab());
    let name = unique("again");
    let options = || RunOptions::new().id(&name);
    let first = ctr.run(BUSYBOX, options())?;
    let number = 7;
    let turn = crab.turn(&first, &["sh", "-c", &state::script(number)])?.1;
    ensure!(turn.published, "{turn:?}");
    first.remove()?;
    let armed = Armed::with(&[&die(point)])?;
    ensure!(ctr.run(BUSYBOX, options()).is_err(), "its shim lives");
    armed.met()?;
    let second = ctr.run(BUSYBOX, options())?;
    second.sh_ok("echo other >/root/other")?;
    let rows = crab.ps()?.into_iter().map(|row| row.sandbox);
    let prefix = format!("{}.", second.sandbox_id());
    let old: Vec<String> = rows.filter(|id| id.starts_with(&prefix)).collect();
    let [old] = &old[..] else {
        anyhow::bail!("the older history is in {old:?}");
    };
    let said = crab.json(&["fsck", old])?;
    ensure!(said["whole"] == true, "{said}");
    let store = crab_store::Store::open(crab_store::DEFAULT_ROOT)?.sandbox(&old.parse()?)?;
    let manifest = store.head()?.context("it has no checkpoint")?;
    ensure!(state::of_checkpoint(&store, &manifest)? == number);
    Ok(())
}
