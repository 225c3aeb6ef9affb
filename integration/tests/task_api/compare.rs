// SPDX-License-Identifier: Apache-2.0

//! A scene that is played with each shim, and has to be answered alike; answers as lines, without what
//! differs from run to run.

use anyhow::{Result, ensure};
use containerd_shim_protos::{
    api::{DeleteResponse, StateResponse, WaitResponse},
    protobuf::{MessageField, well_known_types::timestamp::Timestamp},
};
use crab_integration::{Sandbox, Testbed};

use crate::{
    BOTH,
    alone::{Alone, Wish},
    calls::{Calls, Transcript},
    under_both,
};

/// The year of a time that means "never" in Go, in seconds.
const NEVER: i64 = -62_135_596_800;

fn when(at: &MessageField<Timestamp>) -> &'static str {
    match at.as_ref().map(|at| at.seconds) {
        None => "no time",
        Some(NEVER) => "never",
        Some(seconds) if seconds > 1_700_000_000 => "lately",
        Some(_) => "at an odd time",
    }
}

/// What a process is said to be.
pub(crate) fn state(state: StateResponse) -> String {
    format!(
        "{:?} pid={} exit={} {} id={} exec={:?} {:?} {}",
        state.status.enum_value_or_default(),
        state.pid > 0,
        state.exit_status,
        when(&state.exited_at),
        state.id,
        state.exec_id,
        [state.stdin, state.stdout, state.stderr].map(|path| !path.is_empty()),
        state.terminal,
    )
}

/// How it is said to have ended.
pub(crate) fn end(end: WaitResponse) -> String {
    format!("{} {}", end.exit_status, when(&end.exited_at))
}

/// How it is said to have ended when it is deleted.
pub(crate) fn gone(gone: DeleteResponse) -> String {
    let (status, at) = (gone.exit_status, when(&gone.exited_at));
    format!("{status} {at} pid={}", gone.pid > 0)
}

/// Runs a scene with a container of each shim, and has them say the same.
pub(crate) fn compare(
    scene: impl Fn(&Calls, &Sandbox, &mut Transcript) -> Result<()>,
) -> Result<()> {
    let mut heard = Vec::new();
    under_both(|_, sandbox, calls| {
        let mut transcript = Transcript::default();
        scene(calls, sandbox, &mut transcript)?;
        heard.push(transcript.without(sandbox.id()));
        Ok(())
    })?;
    same(&heard[0], &heard[1])
}

/// The same with shims of their own, whose containers are not even created.
pub(crate) fn compare_alone(
    wish: &Wish,
    scene: impl Fn(&Alone, &mut Transcript) -> Result<()>,
) -> Result<()> {
    let testbed = Testbed::here()?;
    let mut heard = Vec::new();
    for runtime in BOTH {
        let alone = Alone::start(&testbed, runtime, wish)?;
        let mut transcript = Transcript::default();
        scene(&alone, &mut transcript)?;
        let id = alone.calls.id.clone();
        heard.push(transcript.without(&id));
    }
    same(&heard[0], &heard[1])
}

fn same(stock: &Transcript, crab: &Transcript) -> Result<()> {
    ensure!(!stock.lines().is_empty(), "nothing was asked");
    println!("{stock}");
    ensure!(
        stock == crab,
        "containerd's own shim:\n{stock}\nCrab:\n{crab}"
    );
    Ok(())
}
