// SPDX-License-Identifier: Apache-2.0

//! Ten files of an upper directory with 20,000 have changed.

use anyhow::{Result, ensure};
use crab_integration::{DEBIAN, RunOptions, Testbed};
use crab_store::Class;

use super::{Measured, Plan, captured_ms, frozen_ms};
use crate::series::Series;

/// 200 directories of 100 files each.
const FILL: &str = "mkdir /root/tree && cd /root/tree && for d in $(seq 200); do mkdir $d; \
                    for f in $(seq 100); do echo $d.$f >$d/$f; done; done";

/// More changes than the kernel side notes down, so that everything is looked at. None is left.
const FLOOD: &str = "for n in $(seq 3000); do : >/root/flood; done; rm /root/flood";

pub(super) fn measure(testbed: &Testbed, plan: &Plan, measured: &mut Measured) -> Result<()> {
    let crab = testbed.crab();
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    crab.turn_of(&sandbox, Class::Files, FILL)?;
    let (mut captured, mut frozen) = (Series::default(), Series::default());
    let (mut decided, mut copied) = (Series::default(), Series::default());
    for round in 0..plan.rounds {
        let change = format!(
            "cd /root/tree && for d in 1 23 45 67 89 111 133 155 177 199; do echo {round} >$d/{}; done",
            round % 100 + 1
        );
        let turn = crab.turn_of(&sandbox, Class::Files, &change)?;
        ensure!(turn.record.files_changed == 10, "{turn:?}");
        let cost = &turn.record.cost;
        captured.push_ms(captured_ms(cost));
        frozen.push_ms(frozen_ms(cost));
        decided.push_ms(cost.decide_us as f64 / 1e3);
        copied.push_ms(cost.capture_us as f64 / 1e3);
    }
    let mut everything = Series::default();
    for round in 0..plan.rounds {
        let change = format!("{FLOOD}; echo {round} >/root/tree/1/1");
        let turn = crab.turn_of(&sandbox, Class::Files, &change)?;
        ensure!(turn.record.files_changed == 1, "{turn:?}");
        everything.push_ms(captured_ms(&turn.record.cost));
    }
    let everything = everything.quantile(0.5);
    measured.detail("files: end to let go after a flood, ms p50", everything);
    measured.enter("files_capture_ms_p50", captured.quantile(0.5));
    measured.enter("files_frozen_ms_p50", frozen.quantile(0.5));
    measured.detail("files: end to let go, ms p90", captured.quantile(0.9));
    measured.detail("files: frozen, ms most", frozen.quantile(1.0));
    measured.detail("files: of it deciding, ms p50", decided.quantile(0.5));
    measured.detail("files: of it copying, ms p50", copied.quantile(0.5));
    Ok(())
}
