// SPDX-License-Identifier: Apache-2.0

//! What it costs work that it is looked at: the same work under the stock shim on a host
//! where nothing of Crab is loaded, under Crab with checkpoints off while another sandbox is
//! watched, and under Crab as it is. In each round all three, in changing order; figures are
//! medians of the rounds' ratios.

use std::{collections::BTreeMap, fs, time::Duration};

use anyhow::{Context, Result};
use crab_integration::{BUSYBOX, DEBIAN, RunOptions, Runtime, Sandbox, Testbed, poll};

use super::{Measured, Plan};
use crate::{
    host::{PINS, without_crab},
    series::median,
};

const LIMIT: Duration = Duration::from_secs(30);
const WORK_LIMIT: Duration = Duration::from_secs(300);

/// A piece of work, and what it needs before.
struct Work {
    figure: &'static str,
    name: &'static str,
    before: &'static str,
    script: &'static str,
}

const WORKS: [Work; 3] = [
    // A compiler for each of 60 small files, two at a time, and a linker.
    Work {
        figure: "overhead_pct_build",
        name: "build",
        before: "mkdir -p /root/build && cd /root/build && for i in $(seq 60); do \
                 printf '#include <stdio.h>\\n#include <stdlib.h>\\n#include <string.h>\\nint f%s(void) \
                 { char b[64]; snprintf(b, sizeof b, \"%%d\", %s); return strlen(b); }\\n' $i $i >f$i.c; done; \
                 echo 'int main(void) { return 0; }' >main.c; \
                 printf 'OBJS = $(patsubst %%.c,%%.o,$(wildcard *.c))\\nall: $(OBJS)\\n\\t$(CC) -o all $(OBJS)\\n' >Makefile",
        script: "cd /root/build && rm -f *.o all && make -s -j2 all",
    },
    // Headers and Python's library: some thousand files.
    Work {
        figure: "overhead_pct_untar",
        name: "untar",
        before: "tar cf /root/files.tar /usr/include /usr/lib/python3* 2>/dev/null",
        script: "mkdir /root/untar && tar xf /root/files.tar -C /root/untar && rm -r /root/untar",
    },
    // Branches that differ in every file, back and forth, with a commit each time.
    Work {
        figure: "overhead_pct_git",
        name: "git",
        before: "git init -q /root/repo && cd /root/repo && git config user.name a && git config user.email a@b && \
                 git config gc.auto 0 && git config maintenance.auto false && mkdir d && \
                 for i in $(seq 400); do echo $i >d/$i; done && git add . && git commit -qm one && git checkout -qb other && \
                 for i in $(seq 400); do echo other $i >d/$i; done && git commit -qam two",
        script: "cd /root/repo && for i in 1 2 3 4 5 6; do git checkout -q master && git status >/dev/null && \
                 git checkout -q other && echo $i >>d/1 && git commit -qam $i && git diff HEAD~1 >/dev/null; done",
    },
];

/// Under what it is done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Arm {
    Stock,
    Off,
    On,
}

const ARMS: [(Arm, &str); 3] = [
    (Arm::Stock, "stock shim"),
    (Arm::Off, "checkpoints off"),
    (Arm::On, "checkpoints on"),
];

/// Seconds by the clock, and of processors.
#[derive(Clone, Copy)]
struct Took {
    clock: f64,
    processor: f64,
}

pub(super) fn measure(testbed: &Testbed, plan: &Plan, measured: &mut Measured) -> Result<()> {
    let mut took: BTreeMap<(&str, Arm), Vec<Took>> = BTreeMap::new();
    // The first round only warms up.
    for round in 0..=plan.rounds {
        let mut order = ARMS;
        order.rotate_left(round % ARMS.len());
        for (arm, _) in order {
            for (work, one) in in_arm(testbed, arm)? {
                if round > 0 {
                    took.entry((work, arm)).or_default().push(one);
                }
            }
        }
        eprintln!("overhead: round {round} of {}", plan.rounds);
    }
    for work in &WORKS {
        let of = |arm| took.get(&(work.name, arm)).map_or(&[][..], Vec::as_slice);
        let percent = |arm, what: fn(&Took) -> f64| {
            let pairs = of(arm).iter().zip(of(Arm::Stock));
            let ratios: Vec<f64> = pairs.map(|(one, stock)| what(one) / what(stock)).collect();
            100.0 * (median(&ratios) - 1.0)
        };
        measured.enter(work.figure, percent(Arm::Off, |took| took.clock));
        let name = work.name;
        measured.detail(
            format!("{name}: % of processors, checkpoints off"),
            percent(Arm::Off, |t| t.processor),
        );
        measured.detail(
            format!("{name}: % by the clock, checkpoints on"),
            percent(Arm::On, |t| t.clock),
        );
        measured.detail(
            format!("{name}: % of processors, checkpoints on"),
            percent(Arm::On, |t| t.processor),
        );
        for (arm, what) in ARMS {
            let seconds: Vec<f64> = of(arm).iter().map(|took| took.clock).collect();
            measured.detail(format!("{name}: seconds, {what}"), median(&seconds));
        }
    }
    measured.detail("overhead: rounds", plan.rounds as f64);
    Ok(())
}

/// Every piece of work once.
fn in_arm(testbed: &Testbed, arm: Arm) -> Result<Vec<(&'static str, Took)>> {
    let ctr = testbed.ctr();
    let (options, _other) = match arm {
        Arm::Stock => {
            without_crab()?;
            (RunOptions::new().runtime(Runtime::Stock), None)
        }
        Arm::Off => {
            let off = ["--annotation", "dev.crab.checkpoints.enabled=false"];
            // Else nothing might be looked at on this host.
            let other = ctr.run(BUSYBOX, RunOptions::new())?;
            (RunOptions::new().flags(off), Some(other))
        }
        Arm::On => (RunOptions::new(), None),
    };
    let sandbox = ctr.run(DEBIAN, options)?;
    if arm != Arm::Stock {
        poll("crabd's programs are in the kernel", LIMIT, || {
            let mut sets = fs::read_dir(PINS).into_iter().flatten().flatten();
            let there = sets.any(|set| set.file_name().to_string_lossy().starts_with("set-"));
            Ok(there.then_some(()))
        })?;
    }
    let mut all = Vec::new();
    for work in &WORKS {
        sandbox.sh_ok(work.before).context(work.name)?;
        all.push((work.name, timed(&sandbox, work)?));
    }
    Ok(all)
}

/// By the shell's own clock: what an exec takes to start is not the work's.
fn timed(sandbox: &Sandbox, work: &Work) -> Result<Took> {
    let script = format!(
        "TIMEFORMAT='%3R %3U %3S'; sync; {{ time ({}) >/dev/null; }} 2>&1",
        work.script
    );
    let options = crab_integration::ExecOptions::new().limit(WORK_LIMIT);
    let said = sandbox.exec_with(&["bash", "-c", &script], &options)?;
    let text = said.text().context(work.name)?;
    let numbers: Vec<f64> = text
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()
        .with_context(|| format!("{} printed {text}", work.name))?;
    let [clock, user, system] = numbers[..] else {
        anyhow::bail!("{} printed {text}", work.name);
    };
    Ok(Took {
        clock,
        processor: user + system,
    })
}
