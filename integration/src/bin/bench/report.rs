// SPDX-License-Identifier: Apache-2.0

//! The figures as a table for people.

use std::fmt::Write;

use crate::{
    lifecycle::{Measured, Pair},
    memory::Memory,
};

/// What the figures shall be at most.
const TARGETS: [(&str, f64); 6] = [
    ("run_ratio", 1.0),
    ("exec_ratio", 1.0),
    ("rss_mb", 6.0),
    ("crabd_rss_mb_50", 40.0),
    ("leaks", 0.0),
    ("critest_only_here", 0.0),
];

pub(crate) fn table(measured: &Measured) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut text, measured);
    text
}

fn write(out: &mut String, measured: &Measured) -> std::fmt::Result {
    writeln!(out, "{}\n", measured.machine)?;
    writeln!(out, "{:<18}{:>9}  TARGET", "FIGURE", "VALUE")?;
    for (name, value) in &measured.figures {
        let target = TARGETS.iter().find(|(of, _)| of == name);
        let target = target.map_or(String::new(), |(_, limit)| {
            let sign = if value <= limit { "" } else { "  MISSED" };
            format!("<= {limit}{sign}")
        });
        writeln!(out, "{name:<18}{value:>9.3}  {target}")?;
    }
    writeln!(
        out,
        "\n{:<10}{:<8}{:>10}{:>10}{:>10}{:>8}",
        "TIME", "SHIM", "MEDIAN", "P10", "P90", "COUNT"
    )?;
    for (what, pair) in &measured.times_ms {
        for (shim, times) in [("crab", pair.crab), ("stock", pair.stock)] {
            writeln!(
                out,
                "{what:<10}{shim:<8}{:>7.1} ms{:>7.1} ms{:>7.1} ms{:>8}",
                times.median, times.p10, times.p90, times.count
            )?;
        }
    }
    writeln!(
        out,
        "\n{:<26}{:>9}{:>9}{:>9}{:>9}",
        "MEMORY (MiB)", "RSS", "ANON", "PSS", "THREADS"
    )?;
    pair(out, "idle container", &measured.idle_mb)?;
    pair(out, "after ten execs", &measured.used_mb)?;
    let crabd = format!("crabd, {} sandboxes", measured.sandboxes);
    row(out, &crabd, &measured.crabd_mb)?;
    writeln!(
        out,
        "\nleft by {} containers one by one and {} at once: {}",
        measured.cycles,
        measured.sandboxes,
        match &measured.left[..] {
            [] => "nothing".to_owned(),
            left => left.join(", "),
        }
    )?;
    for spec in &measured.critest_only_here {
        writeln!(out, "critest fails only under crab: {spec}")?;
    }
    Ok(())
}

fn pair(out: &mut String, what: &str, pair: &Pair<Memory>) -> std::fmt::Result {
    row(out, &format!("{what}, crab"), &pair.crab)?;
    row(out, &format!("{what}, stock"), &pair.stock)
}

fn row(out: &mut String, what: &str, memory: &Memory) -> std::fmt::Result {
    writeln!(
        out,
        "{what:<26}{:>9.2}{:>9.2}{:>9.2}{:>9.1}",
        memory.rss, memory.anonymous, memory.pss, memory.threads
    )
}
