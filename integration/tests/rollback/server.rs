// SPDX-License-Identifier: Apache-2.0

//! The server in these sandboxes: it counts in memory, prints each count, and answers with it.

use anyhow::{Result, ensure};
use crab_integration::{
    Crab, RunOptions, Sandbox,
    counter::{self, ASK, SERVER},
};
use crab_store::Class;

/// A request: it is counted, and the count is printed.
const ASK_IT: [&str; 6] = ["python3", "-c", ASK, "server", "count", "print"];

/// Asks the server inside; also a turn.
pub(crate) fn ask(sandbox: &Sandbox) -> Result<u32> {
    let said = sandbox.exec(&ASK_IT)?;
    ensure!(said.status == 0, "nobody answers: {}", said.stderr);
    Ok(said.stdout.trim().parse()?)
}

/// The same, and the number of its turn, which must be of the class.
pub(crate) fn ask_as_turn(crab: &Crab, sandbox: &Sandbox, class: Class) -> Result<(u32, u64)> {
    let (said, turn) = crab.turn(sandbox, &ASK_IT)?;
    ensure!(said.status == 0, "nobody answers: {}", said.stderr);
    ensure!(turn.class() == class && turn.is_whole(), "{turn:?}");
    Ok((said.stdout.trim().parse()?, turn.number()))
}

/// Starts it, as one turn, with a log.
pub(crate) fn start_server(crab: &Crab, sandbox: &Sandbox) -> Result<()> {
    let script = format!(
        "{}\n\
         setsid python3 /root/server.py server </dev/null >/root/log 2>&1 &\n\
         while ! grep -q ready /root/log; do sleep 0.01; done",
        counter::install()
    );
    let turn = crab.turn_of(sandbox, Class::Full, &script)?;
    ensure!(turn.record.degraded.is_none(), "{turn:?}");
    Ok(())
}

/// The same, and asks it twice; gives the turn in which the count became 1.
pub(crate) fn start_and_count_to_two(crab: &Crab, sandbox: &Sandbox) -> Result<u64> {
    start_server(crab, sandbox)?;
    let (_, first) = ask_as_turn(crab, sandbox, Class::Full)?;
    let (count, _) = ask_as_turn(crab, sandbox, Class::Full)?;
    ensure!(count == 2, "the second answer is {count}");
    Ok(first)
}

/// A sandbox whose init it is.
pub(crate) fn as_init() -> RunOptions {
    RunOptions::without_bytecode().args(["python3", "-c", SERVER, "server"])
}
