// SPDX-License-Identifier: Apache-2.0

//! Records for tests. Their values are made up.

use std::collections::BTreeMap;

use crab_integration::replay::{Crash, Kept, Play, Point, Ratio, Record, Rule, VERSION};

/// Nothing was played.
pub(super) fn empty() -> Record {
    Record {
        version: VERSION,
        name: "replay".to_owned(),
        machine: "Linux 6.18, 2 processors".to_owned(),
        date: "2026-11-30".to_owned(),
        command: "scripts/bench replay --json".to_owned(),
        seed: 7,
        scale: 0.25,
        fast_scale: 0.05,
        figures: BTreeMap::new(),
        details: BTreeMap::new(),
        plays: Vec::new(),
        strategies: Vec::new(),
        timeline: Vec::new(),
        rules: Vec::new(),
        remarks: Vec::new(),
    }
}

/// A turn of the timeline.
pub(super) fn point(trace: &str, turn: usize, class: &str, bytes: u64) -> Point {
    Point {
        trace: trace.to_owned(),
        client: "docker".to_owned(),
        turn,
        class: class.to_owned(),
        bytes,
        full_bytes: None,
    }
}

fn kept(name: &str, title: &str, recovered: usize, crashes: usize) -> Kept {
    let crash = |turn: usize| Crash {
        trace: "git-history".to_owned(),
        client: "docker".to_owned(),
        turn,
        back_at: 0,
        recovered: turn <= recovered,
        differences: match turn <= recovered {
            true => Vec::new(),
            false => vec![format!("{name}: /srv/notes of turn {turn} is missing")],
        },
        recover_ms: 100.0 * turn as f64,
    };
    Kept {
        name: name.to_owned(),
        title: title.to_owned(),
        what: "what is kept".to_owned(),
        crashes: (1..=crashes).map(crash).collect(),
        exposed_ms: Vec::new(),
        bytes: None,
        ratios: Vec::new(),
    }
}

/// A bit of everything.
pub(super) fn record() -> Record {
    let mut crab = kept("crab", "Crab", 4, 4);
    crab.exposed_ms = vec![0.0, 0.5, 12.0];
    crab.bytes = Some(12_300_000);
    crab.ratios = vec![Ratio {
        trace: "git-history".to_owned(),
        client: "docker".to_owned(),
        seconds: 50.2,
        stock_seconds: 50.0,
    }];
    let mut unmeasured = kept("own", "A way of one's own", 0, 0);
    unmeasured.bytes = Some(0);
    let classes = ["none", "files", "processes", "full"];
    let turns = (1..).zip(classes);
    Record {
        figures: BTreeMap::from([("recovery_pct_crab".to_owned(), 100.0)]),
        details: BTreeMap::from([("dumps".to_owned(), 12.0)]),
        plays: vec![Play {
            trace: "git-history".to_owned(),
            agent: None,
            client: "docker".to_owned(),
            driver: "exec".to_owned(),
            turns: 4,
        }],
        strategies: vec![kept("chat", "Chat only", 1, 3), crab, unmeasured],
        timeline: turns
            .map(|(turn, class)| point("git-history", turn, class, 10u64.pow(turn as u32) - 10))
            .collect(),
        rules: vec![Rule {
            what: "times of files".to_owned(),
            why: "no two runs are at the same time".to_owned(),
        }],
        remarks: vec!["nothing of note".to_owned()],
        ..empty()
    }
}

/// The same, with every text one that would do harm if it were more than text, and with values
/// that no machine has.
pub(super) fn foreign() -> Record {
    let text = || "</title></style><script>alert('1')</script>&amp;<b>bold\" onload=\"x".to_owned();
    let mut record = record();
    for of in [&mut record.machine, &mut record.date, &mut record.command] {
        *of = text();
    }
    record.figures = BTreeMap::from([(text(), f64::NAN)]);
    record.details = BTreeMap::from([(text(), f64::INFINITY)]);
    for play in &mut record.plays {
        play.agent = Some(text());
        for of in [&mut play.trace, &mut play.client, &mut play.driver] {
            *of = text();
        }
        play.turns = 1 << 60;
    }
    for kept in &mut record.strategies {
        for of in [&mut kept.name, &mut kept.title, &mut kept.what] {
            *of = text();
        }
        for crash in &mut kept.crashes {
            crash.trace = text();
            crash.client = text();
            crash.differences = vec![text()];
            crash.recover_ms = f64::MAX;
        }
        kept.exposed_ms = vec![f64::NAN, f64::INFINITY, -1.0, 0.0];
        kept.bytes = Some(u64::MAX);
        for ratio in &mut kept.ratios {
            ratio.stock_seconds = 0.0;
        }
    }
    for point in &mut record.timeline {
        point.trace = text();
        point.client = text();
        point.class = text();
        point.bytes = u64::MAX;
        point.full_bytes = Some(u64::MAX);
    }
    for rule in &mut record.rules {
        rule.what = text();
        rule.why = text();
    }
    record.remarks = vec![text()];
    record
}
