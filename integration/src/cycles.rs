// SPDX-License-Identifier: Apache-2.0

//! Many containers that come and go, and what is left of them: for the tests and for
//! the figure `leaks`.

use std::{sync::Mutex, thread};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    census::Census,
    client::{Client, RunOptions, Runtime},
    sandbox::Sandbox,
    testbed::BUSYBOX,
};

/// So many are made or removed at the same time where many live at once.
const HANDS: usize = 8;

/// What a daemon makes for its first containers, it keeps.
const WARM_UP: usize = 3;

/// Containers of one client under one shim.
#[derive(Clone, Copy, Debug)]
pub struct Cycles {
    /// Whose they are.
    pub client: Client,
    /// Under which shim.
    pub runtime: Runtime,
}

impl Cycles {
    fn options(&self) -> RunOptions {
        RunOptions::new().runtime(self.runtime)
    }

    /// One after the other is run, executes something in it that leaves a file, and is
    /// removed.
    pub fn one_by_one(&self, count: usize) -> Result<()> {
        for number in 0..count {
            let sandbox = self.client.run(BUSYBOX, self.options())?;
            greet(&sandbox, number)?;
            sandbox.remove()?;
        }
        Ok(())
    }

    /// So many live at once, each executes something, and all are removed.
    pub fn at_once(&self, count: usize) -> Result<()> {
        let numbers: Vec<usize> = (0..count).collect();
        let sandboxes = in_parallel(numbers, |number| {
            let sandbox = self.client.run(BUSYBOX, self.options())?;
            Ok((number, sandbox))
        })?;
        let sandboxes = in_parallel(sandboxes, |(number, sandbox)| {
            greet(&sandbox, number)?;
            Ok(sandbox)
        })?;
        in_parallel(sandboxes, Sandbox::remove)?;
        Ok(())
    }

    /// What is left on the host of `cycles` containers one by one and of `at_once` that
    /// lived together: one line for each thing that was not there before.
    pub fn leaks(&self, cycles: usize, at_once: usize) -> Result<Vec<String>> {
        self.one_by_one(WARM_UP)?;
        self.at_once(HANDS.min(at_once))?;
        let before = Census::with_descriptors()?;
        self.one_by_one(cycles)?;
        self.at_once(at_once)?;
        before.left()
    }
}

/// Has a container execute something, whose answer is its own.
fn greet(sandbox: &Sandbox, number: usize) -> Result<()> {
    let said = sandbox.sh_ok(&format!("echo {number} >/root/number; cat /root/number"))?;
    ensure!(said == number.to_string(), "{} said {said}", sandbox.name());
    Ok(())
}

/// Does the same for each of many, some at a time; the first that fails is told, after
/// all have ended.
fn in_parallel<T: Send, R: Send>(
    items: Vec<T>,
    work: impl Fn(T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let count = items.len();
    let items = Mutex::new(items);
    let done = Mutex::new(Vec::new());
    let worker = || -> Result<()> {
        loop {
            let item = items.lock().map(|mut items| items.pop());
            let Ok(Some(item)) = item else {
                return Ok(());
            };
            let result = work(item)?;
            match done.lock() {
                Ok(mut done) => done.push(result),
                Err(_) => bail!("another worker panicked"),
            }
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..HANDS.min(count)).map(|_| scope.spawn(worker)).collect();
        let ends = workers.into_iter().map(|worker| match worker.join() {
            Ok(end) => end,
            Err(_) => bail!("a worker panicked"),
        });
        ends.collect::<Vec<Result<()>>>()
            .into_iter()
            .collect::<Result<()>>()
    })?;
    done.into_inner().ok().context("a worker panicked")
}
