// SPDX-License-Identifier: Apache-2.0
//! Putting back the files of a checkpoint under processes that go on.
//!
//! ```text
//! plan     by index and tree, while it runs        what cannot be done in place: not at all
//! note     in the store, for whoever comes next, if we are killed
//! freeze   processes and files as captured?        no: nothing was touched
//! change   through the merged view                 fails: put back what was there
//! look     every path is as it was wanted          no: the same
//! thaw
//! ```
//! Only for a checkpoint with the very processes that are there: the same image, or none but an
//! init that only holds the container open.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use crab_fault::Point;
use crab_runtime::{
    files::{Plan, PlanError, PlanLimits, Renewed, put_back},
    procs::Set,
};
use crab_store::{Digest, Manifest, ObjectReader, Tree, escape};
use rustix::fs::{Mode, OFlags, fstat, open};

use super::{Capture, Verification, mount_table, roots::held_below, standing::Standing};

/// How many paths are put back at most while the sandbox stands still, and how many bytes of
/// files: beyond that it stands longer than one whose processes are replaced.
const MAX_PATHS: usize = 1000;
const MAX_BYTES: u64 = 64 << 20;

/// What came of it.
pub(crate) enum Warm {
    /// The files are those of the checkpoint.
    Done {
        stood: Duration,
        /// If it was asked for, and could be done.
        verification: Result<Option<Verification>>,
    },
    /// Nothing was touched: it cannot be done, for this reason.
    Unsuitable(String),
    /// It failed half way, and all is as it was.
    PutBack(anyhow::Error),
    /// It failed half way, and files are neither as they were nor as they should be.
    Torn(anyhow::Error),
}

/// What has to be done to one root.
struct Step {
    tree: Tree,
    digest: Digest,
    plan: Plan,
    /// Where it is done.
    view: OwnedFd,
}

/// Whether the processes of one checkpoint are those of another, by what is in the store;
/// else why they are not.
pub(crate) fn same_processes(target: &Manifest, now: &Manifest) -> Result<(), String> {
    let digest = |manifest: &Manifest| manifest.processes.map(|processes| processes.digest);
    for manifest in [target, now] {
        if let Some(why) = &manifest.degraded {
            return Err(format!("checkpoint {} has {why}", manifest.turn));
        }
    }
    if digest(target) != digest(now) {
        return Err("the processes are others".into());
    }
    Ok(())
}

impl Capture {
    /// Makes the files those of `target`, whose processes are those of `now`, the newest
    /// checkpoint. `note` is made before anything is touched.
    pub(crate) fn go_warm(
        &mut self,
        target: &Manifest,
        reader: &ObjectReader,
        now: &ObjectReader,
        rootfs: &Path,
        verify: bool,
        note: impl FnOnce() -> Result<()>,
    ) -> Result<Warm> {
        let steps = match self.steps(target, reader, rootfs)? {
            Ok(steps) => steps,
            Err(why) => return Ok(Warm::Unsuitable(why)),
        };
        let expected = match verify {
            true => {
                let expected = self.expected(target, reader)?;
                let looks = self.look(&expected)?;
                Some((expected, looks))
            }
            false => None,
        };
        if steps.iter().any(|step| !step.plan.is_empty()) {
            note()?;
        }
        let standing = self.stand()?;
        let unsuitable = match self.suits(&standing, target, &steps) {
            Ok(Ok(())) => None,
            Ok(Err(why)) => Some(Ok(Warm::Unsuitable(why))),
            Err(error) => Some(Err(error)),
        };
        if let Some(answer) = unsuitable {
            self.go_on(standing, false)?;
            return answer;
        }
        let renewed = match self.change(&steps, reader) {
            Ok(renewed) => renewed,
            Err(error) => return Ok(self.take_back(error, &steps, now, standing)),
        };
        for ((root, step), renewed) in self.roots.iter_mut().zip(steps).zip(renewed) {
            renewed.into_index(&mut root.index);
            root.tree = Some(step.digest);
        }
        // What was counted is our own.
        self.known.base = self.effects_now();
        self.known.passed_over = false;
        // Before anything runs on.
        let seen = Instant::now();
        let seen = expected.map(|(expected, looks)| {
            let half = self.look_standing(&expected, looks, &standing);
            (expected, half, seen.elapsed())
        });
        let stood = match self.go_on(standing, true) {
            Ok(stood) => stood,
            Err(error) => return Ok(Warm::Torn(error)),
        };
        let verification = seen.map(|(expected, half, frozen)| {
            let start = Instant::now();
            let (looks, half) = half?;
            let mut verification = self.compare(&expected, looks, half)?;
            verification.frozen = frozen;
            verification.took = frozen + start.elapsed();
            Ok(verification)
        });
        Ok(Warm::Done {
            stood,
            verification: verification.transpose(),
        })
    }

    /// What has to be done to each root; or why it cannot.
    fn steps(
        &self,
        target: &Manifest,
        reader: &ObjectReader,
        rootfs: &Path,
    ) -> Result<Result<Vec<Step>, String>> {
        if mount_table(self.init) != self.mount_table {
            return Ok(Err("something was mounted or unmounted".into()));
        }
        if self.roots.len() != target.files.tmpfs.len() + 1 {
            return Ok(Err("mounts in memory are others".into()));
        }
        let mut steps = Vec::with_capacity(self.roots.len());
        let mut left = PlanLimits {
            paths: MAX_PATHS,
            bytes: MAX_BYTES,
        };
        for root in &self.roots {
            let mount = root.mount_bytes();
            let Some(digest) = root.tree_in(&target.files) else {
                let mount = escape(mount.unwrap_or_default());
                return Ok(Err(format!("{mount} is mounted anew")));
            };
            let view = match (mount, self.root_device) {
                (None, Some(device)) => merged(rootfs, device)?,
                _ => root.scanner.root().try_clone_to_owned()?,
            };
            let tree = reader.tree(digest)?;
            let plan = match Plan::of(&root.scanner, &root.index, &tree, left) {
                Ok(plan) => plan,
                Err(why @ (PlanError::Unsuitable { .. } | PlanError::TooMuch)) => {
                    return Ok(Err(why.to_string()));
                }
                Err(error) => return Err(error.into()),
            };
            left.paths -= plan.len();
            left.bytes -= plan.bytes();
            steps.push(Step {
                tree,
                digest,
                plan,
                view,
            });
        }
        Ok(Ok(steps))
    }

    /// Whether what stands still is what the plan was made for; else why not.
    fn suits(
        &mut self,
        standing: &Standing,
        target: &Manifest,
        steps: &[Step],
    ) -> Result<Result<(), String>> {
        let now = &standing.now;
        if target.processes.is_none() && !now.is_empty() {
            return Ok(Err(
                "there are processes, and the checkpoint has none".into()
            ));
        }
        if let Err(why) = self.as_captured(standing)? {
            return Ok(Err(why));
        }
        if !now.is_empty() && steps.iter().any(|step| step.plan.makes_a_socket()) {
            return Ok(Err("a socket's name has to be made".into()));
        }
        if let Some(held) = self.held(now, steps) {
            return Ok(Err(format!("{held} changes, which a process holds")));
        }
        if !self.are_files_as_captured(standing) {
            // They may be all the same.
            let scans = self.scan(now, true)?;
            if scans.torn || scans.count() > 0 {
                return Ok(Err("files have changed since there is a way back".into()));
            }
            self.pass_over(scans);
        }
        Ok(Ok(()))
    }

    /// A path that becomes another, and that a process holds on to.
    fn held(&self, set: &Set, steps: &[Step]) -> Option<String> {
        if set.is_empty() || steps.iter().all(|step| step.plan.is_empty()) {
            return None;
        }
        let held = set.references();
        let mounts = self.mounts();
        self.roots.iter().zip(steps).find_map(|(root, step)| {
            let held = root.within(&held, &mounts);
            let mut differing = step.plan.differing().iter();
            let found = differing.find(|path| held_below(path, &held))?;
            Some(escape(found))
        })
    }

    /// Does what is planned, and sees that it is done.
    fn change(&self, steps: &[Step], reader: &ObjectReader) -> Result<Vec<Renewed>> {
        for (at, (root, step)) in self.roots.iter().zip(steps).enumerate() {
            crab_fault::pass(match at {
                0 => Point::WarmChange0,
                _ => Point::WarmChange1,
            })?;
            let view = step.view.as_fd();
            step.plan.carry_out(&root.scanner, view, reader)?;
        }
        crab_fault::pass(Point::WarmLook)?;
        let roots = self.roots.iter().zip(steps);
        roots
            .map(|(root, step)| Ok(step.plan.renewed(&root.scanner, &step.tree)?))
            .collect()
    }

    /// After a failure: makes all roots what they were.
    fn take_back(
        &mut self,
        error: anyhow::Error,
        steps: &[Step],
        now: &ObjectReader,
        standing: Standing,
    ) -> Warm {
        let put_back = || -> Result<_> {
            crab_fault::pass(Point::WarmPutBack)?;
            let roots = self.roots.iter().zip(steps);
            roots
                .map(|(root, step)| {
                    Ok(put_back(
                        &root.scanner,
                        step.view.as_fd(),
                        &root.index,
                        now,
                    )?)
                })
                .collect::<Result<Vec<_>>>()
        };
        match put_back() {
            Ok(indexes) => {
                for (root, index) in self.roots.iter_mut().zip(indexes) {
                    root.index = index;
                }
                self.known.base = self.effects_now();
                match self.go_on(standing, true) {
                    Ok(_) => Warm::PutBack(error),
                    Err(again) => Warm::Torn(anyhow!("{error:#}; and then {again:#}")),
                }
            }
            Err(again) => {
                self.known.owed = true;
                // Whoever goes on from here ends what runs.
                let _ = self.go_on(standing, false);
                Warm::Torn(anyhow!("{error:#}; and then {again:#}"))
            }
        }
    }
}

/// The merged view of the container's root, seen from here: nothing that is mounted in it inside
/// is in the way.
fn merged(rootfs: &Path, device: u64) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let view =
        open(rootfs, flags, Mode::empty()).with_context(|| format!("open {}", rootfs.display()))?;
    let found = fstat(&view)?.st_dev;
    if found != device {
        return Err(anyhow!("{} is mounted anew", rootfs.display()));
    }
    Ok(view)
}
