// SPDX-License-Identifier: Apache-2.0
//! What the attached programs cost: nanoseconds per system call without and
//! with them, as one line of JSON. Needs root.
//!
//! `cargo run --release -p crab-bpf --example cost`

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use crab_bpf::{CgroupId, Device, Tracer};

const CALLS: u32 = 500_000;
const ROUNDS: usize = 7;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::temp_dir().join(format!("crab-cost-{}", std::process::id()));
    fs::create_dir(&directory)?;
    let result = measure(&directory);
    fs::remove_dir_all(&directory)?;
    result
}

fn measure(directory: &Path) -> Result<(), Box<dyn Error>> {
    let mut null = OpenOptions::new().write(true).open("/dev/null")?;
    let mut file = File::create(directory.join("file"))?;
    let without = [getppid(), write(&mut null), write(&mut file)];

    let started = Instant::now();
    let mut tracer = Tracer::open(&directory.join("pins"))?;
    let open_ms = started.elapsed().as_secs_f64() * 1e3;
    let unwatched = [getppid(), write(&mut null), write(&mut file)];

    let device = Device::from_st_dev(fs::metadata(directory)?.dev());
    tracer.watch(CgroupId(u64::MAX), &[device])?;
    let watched = [getppid(), write(&mut null), write(&mut file)];

    let started = Instant::now();
    for _ in 0..10_000 {
        tracer.effects(CgroupId(u64::MAX))?;
    }
    let effects_us = started.elapsed().as_secs_f64() * 1e6 / 1e4;
    tracer.close_and_unpin()?;

    let figures: Vec<String> = ["getppid", "write_null", "write_file"]
        .iter()
        .enumerate()
        .map(|(i, call)| {
            format!(
                r#""{call}_ns": {:.0}, "{call}_traced_ns": {:.0}, "{call}_watched_ns": {:.0}"#,
                without[i], unwatched[i], watched[i]
            )
        })
        .collect();
    println!(
        r#"{{"name": "bpf-cost", "figures": {{{}, "open_ms": {open_ms:.1}, "effects_us": {effects_us:.2}}}}}"#,
        figures.join(", ")
    );
    Ok(())
}

/// The best of several rounds: the machine's other work only ever adds.
fn best(mut call: impl FnMut()) -> f64 {
    (0..ROUNDS)
        .map(|_| {
            let started = Instant::now();
            for _ in 0..CALLS {
                call();
            }
            started.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
        })
        .fold(f64::INFINITY, f64::min)
}

fn getppid() -> f64 {
    best(|| {
        std::hint::black_box(rustix::process::getppid());
    })
}

fn write(file: &mut File) -> f64 {
    best(|| {
        // A failed write would show in the figure, not here.
        let _ = file.write(b"x");
    })
}
