// SPDX-License-Identifier: Apache-2.0

//! A shell and a Python server, whose memory and files change: Crab's checkpoint of the turn,
//! and what `ctr` makes under the stock shim, in turn.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use crab_integration::{
    Client, Counter, DEBIAN, RunOptions, Runtime, Sandbox, Testbed, Tool, counter, unique,
};
use crab_store::Class;

use super::{Measured, Plan, captured_ms, frozen_ms};
use crate::series::Series;

/// A shell that waits to be told something.
const SHELL: &str = "mkfifo /root/fifo; \
                     setsid bash -c 'exec 3<>/root/fifo; while read -r line <&3; do :; done' \
                     </dev/null >/dev/null 2>&1 &";

pub(super) fn measure(testbed: &Testbed, plan: &Plan, measured: &mut Measured) -> Result<()> {
    let (ctr, crab) = (testbed.ctr(), testbed.crab());
    let sandbox = ctr.run(DEBIAN, RunOptions::new())?;
    sandbox.exec(&["bash", "-c", SHELL])?.ok()?;
    let server = Counter::start(&crab, &sandbox, 0)?;
    let stock = started(ctr)?;

    let (mut frozen, mut captured) = (Series::default(), Series::default());
    let (mut whole, mut images) = (Series::default(), Series::default());
    for _ in 0..plan.rounds {
        let (_, turn) = server.ask()?;
        ensure!(turn.class() == Class::Full && turn.is_whole(), "{turn:?}");
        frozen.push_ms(frozen_ms(&turn.record.cost));
        captured.push_ms(captured_ms(&turn.record.cost));

        stock.exec(&["ask", "counter", "count"])?.ok()?;
        let start = Instant::now();
        let _image = ctr.checkpoint(&stock)?;
        whole.push(start.elapsed());
        images.push_ms(task_checkpoint_ms(&stock)?);
    }
    // A copy lands in the original's cgroup: only without that can it be ended alone.
    let image = ctr.checkpoint(&stock)?;
    stock.remove()?;
    let mut restored = Series::default();
    for _ in 0..plan.rounds {
        let start = Instant::now();
        let back = image.restored()?;
        restored.push(start.elapsed());
        back.remove()?;
    }
    let stock_ms = whole.quantile(0.5);
    measured.enter("full_frozen_ms_p50", frozen.quantile(0.5));
    measured.enter("stock_checkpoint_ms_p50", stock_ms);
    measured.enter("frozen_ratio", frozen.quantile(0.5) / stock_ms);
    measured.enter("stock_restore_ms_p50", restored.quantile(0.5));
    measured.detail("full: frozen, ms p90", frozen.quantile(0.9));
    measured.detail("full: end to let go, ms p50", captured.quantile(0.5));
    measured.detail("stock: ctr task checkpoint, ms p50", images.quantile(0.5));
    Ok(())
}

/// Both under the stock shim.
fn started(ctr: Client) -> Result<Sandbox> {
    let stock = ctr.run(DEBIAN, RunOptions::new().runtime(Runtime::Stock))?;
    stock.exec(&["bash", "-c", SHELL])?.ok()?;
    stock.exec(&["bash", "-c", &counter::start(0)])?.ok()?;
    Ok(stock)
}

/// `ctr task checkpoint`, which leaves CRIU's images in a directory.
fn task_checkpoint_ms(sandbox: &Sandbox) -> Result<f64> {
    let dir = format!("/var/tmp/{}", unique("images"));
    let start = Instant::now();
    sandbox
        .client()
        .tool(["task", "checkpoint", "--image-path", &dir, sandbox.id()])
        .run()?
        .ok()?;
    let took = start.elapsed();
    Tool::new("rm")
        .args(["-r", &dir])
        .run()?
        .ok()
        .context("remove the images")?;
    Ok(took.as_secs_f64() * 1e3)
}
