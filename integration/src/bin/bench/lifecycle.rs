// SPDX-License-Identifier: Apache-2.0

//! What a container's life costs under Crab and under the stock shim, in turn.
//!
//! In each round both do the same once, and in the next round in the other order, with a
//! pause after each: what one of them still does afterwards must not slow the other, and a
//! machine that is busy for a while slows both. Figures are medians of the rounds after the
//! first few, which only warm up.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use crab_integration::{
    BUSYBOX, Client, Cycles, ExecOptions, RunOptions, Runtime, Sandbox, Testbed, poll, processes,
};
use serde::Serialize;

use crate::{
    memory::Memory,
    series::{Series, Summary, median, rounded},
    shim::{Recipe, Shim},
};

/// Rounds that do not count.
const WARM_UP: usize = 3;
/// After each measurement, so that its afterwork is over before the next.
const PAUSE: Duration = Duration::from_millis(30);
/// Until an idle shim has let go of what it needed to start.
const SETTLED: Duration = Duration::from_secs(5);
/// How long something may take to be there, or gone.
const LIMIT: Duration = Duration::from_secs(20);

const STOCK_SHIM: &str = "containerd-shim-runc-v2";
/// Every program of Crab that may run for a container, but crabd.
const CRAB_PROGRAMS: [&str; 2] = [processes::SHIM, "crab"];

/// How much to measure.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    pub(crate) sandboxes: usize,
    pub(crate) cycles: usize,
    pub(crate) critest: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            rounds: 40,
            sandboxes: 50,
            cycles: 500,
            critest: true,
        }
    }
}

/// The figures by name: what `--json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct Measured {
    pub(crate) name: &'static str,
    pub(crate) machine: String,
    pub(crate) figures: BTreeMap<&'static str, f64>,
    pub(crate) times_ms: BTreeMap<&'static str, Pair<Summary>>,
    /// Of one idle container.
    pub(crate) idle_mb: Pair<Memory>,
    /// Of one idle container in which ten execs have run.
    pub(crate) used_mb: Pair<Memory>,
    pub(crate) crabd_mb: Memory,
    pub(crate) sandboxes: usize,
    pub(crate) cycles: usize,
    /// What these left, one line each.
    pub(crate) left: Vec<String>,
    /// Specs of critest that fail under Crab and pass under the stock shim.
    pub(crate) critest_only_here: Vec<String>,
}

/// The same of both.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Pair<T> {
    pub(crate) crab: T,
    pub(crate) stock: T,
}

/// One thing of both, measured in turn.
struct InTurn {
    crab: Series,
    stock: Series,
    /// Crab over stock, round by round.
    ratios: Vec<f64>,
}

impl InTurn {
    fn measure(rounds: usize, mut one: impl FnMut(Runtime) -> Result<Duration>) -> Result<Self> {
        let mut all = Self {
            crab: Series::default(),
            stock: Series::default(),
            ratios: Vec::new(),
        };
        for round in 0..WARM_UP + rounds {
            let order = match round % 2 {
                0 => [Runtime::Crab, Runtime::Stock],
                _ => [Runtime::Stock, Runtime::Crab],
            };
            let mut took = Pair::default();
            for runtime in order {
                match runtime {
                    Runtime::Crab => took.crab = one(runtime)?,
                    Runtime::Stock => took.stock = one(runtime)?,
                }
                thread::sleep(PAUSE);
            }
            if round >= WARM_UP {
                all.crab.push(took.crab);
                all.stock.push(took.stock);
                all.ratios
                    .push(took.crab.as_secs_f64() / took.stock.as_secs_f64());
            }
        }
        Ok(all)
    }
}

impl Measured {
    fn enter(&mut self, ratio: &'static str, what: &'static str, series: &InTurn) {
        let pair = Pair {
            crab: series.crab.summary(),
            stock: series.stock.summary(),
        };
        let of_medians = pair.crab.median / pair.stock.median;
        self.figures.insert(ratio, rounded(of_medians));
        self.times_ms.insert(what, pair);
        eprintln!(
            "{what}: crab {:.1} ms, stock {:.1} ms, {of_medians:.3}; median of the rounds' ratios {:.3}",
            pair.crab.median,
            pair.stock.median,
            median(&series.ratios)
        );
    }
}

/// Measures everything.
pub(crate) fn measure(testbed: &Testbed, plan: &Plan) -> Result<Measured> {
    let ctr = testbed.ctr();
    let mut measured = Measured {
        name: "lifecycle",
        machine: testbed.machine(),
        figures: BTreeMap::new(),
        times_ms: BTreeMap::new(),
        idle_mb: Pair::default(),
        used_mb: Pair::default(),
        crabd_mb: Memory::default(),
        sandboxes: plan.sandboxes,
        cycles: plan.cycles,
        left: Vec::new(),
        critest_only_here: Vec::new(),
    };
    // They stay: crabd is up from here on, as on a host with sandboxes.
    let crab = ctr.run(BUSYBOX, RunOptions::new())?;
    let stock = ctr.run(BUSYBOX, RunOptions::new().runtime(Runtime::Stock))?;
    poll("crabd is there", LIMIT, || Ok(processes::crabd()))?;
    let of = |runtime| match runtime {
        Runtime::Crab => &crab,
        Runtime::Stock => &stock,
    };

    let run = InTurn::measure(plan.rounds, |runtime| run_rm(ctr, runtime))?;
    measured.enter("run_ratio", "run", &run);
    let exec = InTurn::measure(plan.rounds, |runtime| exec(of(runtime)))?;
    measured.enter("exec_ratio", "exec", &exec);
    let create = creates(plan.rounds, of(Runtime::Stock))?;
    measured.enter("create_ratio", "create", &create);

    drop(crab);
    drop(stock);
    memory(ctr, plan.sandboxes, &mut measured)?;
    let cycles = Cycles {
        client: ctr,
        runtime: Runtime::Crab,
    };
    measured.left = cycles.leaks(plan.cycles, plan.sandboxes)?;
    let leaks = measured.left.len() as f64;
    measured.figures.insert("leaks", leaks);
    if plan.critest {
        critest(testbed, &mut measured)?;
    }
    Ok(measured)
}

/// No figure where critest could not be built.
fn critest(testbed: &Testbed, measured: &mut Measured) -> Result<()> {
    let Some(stock) = testbed.critest(Runtime::Stock, None)? else {
        eprintln!("critest is not there: no figure critest_only_here");
        return Ok(());
    };
    let crab = testbed
        .critest(Runtime::Crab, None)?
        .context("critest was there for the stock shim")?;
    for (shim, report) in [("stock", &stock), ("crab", &crab)] {
        eprintln!(
            "critest, {shim}: {} passed, {} failed, {} skipped, {:.0} s",
            report.passed.len(),
            report.failed.len(),
            report.skipped.len(),
            report.took.as_secs_f64()
        );
    }
    let only_here = crab.only_here(&stock);
    measured.critest_only_here = only_here
        .map(|(name, why)| format!("{name}: {why}"))
        .collect();
    let count = measured.critest_only_here.len() as f64;
    measured.figures.insert("critest_only_here", count);
    Ok(())
}

/// `ctr run --rm ... true`.
fn run_rm(ctr: Client, runtime: Runtime) -> Result<Duration> {
    let (tool, guard) =
        ctr.run_rm_tool(BUSYBOX, RunOptions::new().runtime(runtime).args(["true"]))?;
    let took = tool.run()?.ok()?.took;
    poll("the shim has ended", LIMIT, || {
        Ok(processes::shim_of(ctr.namespace(), guard.id())
            .is_none()
            .then_some(()))
    })?;
    guard.keep();
    Ok(took)
}

/// `ctr task exec ... true`.
fn exec(sandbox: &Sandbox) -> Result<Duration> {
    let tool = sandbox.exec_tool(&["true"], &ExecOptions::new());
    Ok(tool.run()?.ok()?.took)
}

/// The Create call alone.
fn creates(rounds: usize, like: &Sandbox) -> Result<InTurn> {
    let recipe = Recipe::of(like)?;
    let mut number = 0;
    InTurn::measure(rounds, |runtime| {
        number += 1;
        let shim = Shim::start(runtime, &recipe, &format!("create-{number}"))?;
        let took = shim.create(&recipe);
        let ended = shim.end();
        // Why there was nothing to end comes first.
        let took = took?;
        ended.map(|()| took)
    })
}

/// What idle containers hold. Those of the stock shim come first, and fewer: it shares
/// nothing between containers that would show.
fn memory(ctr: Client, sandboxes: usize, measured: &mut Measured) -> Result<()> {
    let few = sandboxes.min(10);
    let stock = start(ctr, Runtime::Stock, few)?;
    measured.idle_mb.stock = settled(&[STOCK_SHIM], few)?;
    use_all(&stock)?;
    measured.used_mb.stock = settled(&[STOCK_SHIM], few)?;
    drop(stock);

    let crab = start(ctr, Runtime::Crab, sandboxes)?;
    measured.idle_mb.crab = settled(&CRAB_PROGRAMS, sandboxes)?;
    let crabd = processes::crabd().context("no crabd runs")?;
    measured.crabd_mb = Memory::of(crabd)?;
    use_all(&crab)?;
    measured.used_mb.crab = settled(&CRAB_PROGRAMS, sandboxes)?;
    drop(crab);

    let figures = [
        ("rss_mb", measured.idle_mb.crab.rss),
        ("crabd_rss_mb_50", measured.crabd_mb.rss),
    ];
    for (name, value) in figures {
        measured.figures.insert(name, rounded(value));
    }
    Ok(())
}

fn start(ctr: Client, runtime: Runtime, count: usize) -> Result<Vec<Sandbox>> {
    let began = Instant::now();
    let all: Result<Vec<_>> = (0..count)
        .map(|_| ctr.run(BUSYBOX, RunOptions::new().runtime(runtime)))
        .collect();
    eprintln!(
        "{count} containers under {} after {:.1} s",
        runtime.name(),
        began.elapsed().as_secs_f64()
    );
    all
}

fn use_all(sandboxes: &[Sandbox]) -> Result<()> {
    for sandbox in sandboxes {
        for n in 0..10 {
            sandbox.sh_ok(&format!("echo {n} >/root/{}", n % 3))?;
        }
    }
    Ok(())
}

fn settled(programs: &[&str], containers: usize) -> Result<Memory> {
    thread::sleep(SETTLED);
    let memory = Memory::per_container(programs, containers)?;
    ensure!(memory.rss > 0.0, "no process is called {}", programs[0]);
    Ok(memory)
}
