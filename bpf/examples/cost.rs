// SPDX-License-Identifier: Apache-2.0
//! What each set of programs costs, as one line of JSON per set: nanoseconds per call
//! without and with it, and the CPU time of real work in a watched overlay and cgroup
//! against the same work unwatched: pairs in one run, their median. Needs root, tar,
//! git and cc. `alone` tells whether no other program sat on the system calls: behind one,
//! half of what ours costs hides. The calls alone are measured in rounds that are shorter
//! than a time slice, of which the best counts, so also on a busy machine.
//!
//! `cargo run --release -p crab-bpf --example cost [PAIRS]`

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crab_bpf::{CgroupId, Device, Programs, Tracer};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

const CALLS: u32 = 1_000;
const ROUNDS: usize = 500;

/// How long to wait for others to go.
const PATIENCE: Duration = Duration::from_secs(60);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let pairs = std::env::args()
        .nth(1)
        .map_or(Ok(9), |pairs| pairs.parse())?;
    let place = Place::new()?;
    for programs in Programs::BY_COST {
        if let Err(refusal) = place.open(programs).and_then(|t| Ok(t.close_and_unpin()?)) {
            eprintln!("{programs}: {refusal}");
            continue;
        }
        println!("{}", measure(&place, programs, pairs)?);
    }
    Ok(())
}

/// Whether no program of others sits on the system calls, after some patience.
fn alone() -> bool {
    let others = || {
        let on_calls: Vec<u32> = aya::programs::loaded_programs()
            .flatten()
            .filter(|program| program.name() == b"sys_exit")
            .map(|program| program.id())
            .collect();
        aya::programs::loaded_links()
            .flatten()
            .any(|link| on_calls.contains(&link.program_id()))
    };
    let start = Instant::now();
    while others() {
        if start.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    true
}

fn measure(place: &Place, programs: Programs, pairs: usize) -> Result<String> {
    let mut null = OpenOptions::new().write(true).open("/dev/null")?;
    let mut file = File::create(place.merged.join("file"))?;
    let mut micro = || [getppid(), write(&mut null), write(&mut file), fault()];
    let alone = alone();
    let without = micro();
    let started = Instant::now();
    let mut tracer = place.open(programs)?;
    let open_ms = started.elapsed().as_secs_f64() * 1e3;
    let with = micro();
    let started = Instant::now();
    for _ in 0..1_000 {
        tracer.effects(place.cgroup)?;
    }
    let effects_us = started.elapsed().as_secs_f64() * 1e6 / 1e3;
    let started = Instant::now();
    tracer.attend(place.cgroup, &Default::default(), Duration::ZERO)?;
    let attend_us = started.elapsed().as_secs_f64() * 1e6;
    tracer.relax()?;
    tracer.close_and_unpin()?;

    let names = ["getppid", "write_null", "write_file", "fault"];
    let mut figures: Vec<String> = names
        .iter()
        .enumerate()
        .map(|(i, name)| {
            let (without, with) = (without[i], with[i]);
            format!(r#""{name}_ns": {without:.0}, "{name}_counted_ns": {with:.0}"#)
        })
        .collect();
    for (name, script) in WORK {
        let mut ratios = Vec::new();
        for pair in 0..pairs {
            let mut times = [0.0; 2];
            // In turn first the one, then the other.
            for step in 0..2 {
                let counted = (pair + step) % 2 == 1;
                let tracer = match counted {
                    true => Some(place.open(programs)?),
                    false => None,
                };
                times[usize::from(counted)] = place.work(script)?;
                if let Some(tracer) = tracer {
                    tracer.close_and_unpin()?;
                }
            }
            ratios.push((times[1] / times[0] - 1.0) * 100.0);
        }
        if ratios.is_empty() {
            continue;
        }
        ratios.sort_by(f64::total_cmp);
        let (median, low, high) = (ratios[pairs / 2], ratios[pairs / 4], ratios[pairs * 3 / 4]);
        figures.push(format!(
            r#""{name}_pct": {median:.2}, "{name}_pct_quartiles": [{low:.2}, {high:.2}]"#
        ));
    }
    Ok(format!(
        r#"{{"name": "bpf-cost", "programs": "{programs}", "pairs": {pairs}, "alone": {alone}, "figures": {{{}, "open_ms": {open_ms:.1}, "effects_us": {effects_us:.2}, "attend_us": {attend_us:.0}}}}}"#,
        figures.join(", ")
    ))
}

/// Run in an empty directory of the overlay; `$T` holds what they need.
const WORK: [(&str, &str); 3] = [
    (
        "untar",
        "for i in 1 2 3; do mkdir $i; tar xf $T/files.tar -C $i; done",
    ),
    (
        "git",
        "tar xf $T/files.tar; git init -q .; git add .; git commit -qm one; \
         for i in 1 2 3 4 5; do git status -s; echo $i >> f/1/1; git commit -qam $i; \
         git log --stat -1 > log; done; git checkout -q HEAD~3; git gc -q",
    ),
    (
        "build",
        "for i in $(seq 12); do cp $T/unit.c $i.c; cc -O1 -c $i.c -o $i.o; done; \
         ar rc lib.a *.o",
    ),
];

/// An overlay on a disk, and a cgroup.
struct Place {
    directory: PathBuf,
    merged: PathBuf,
    group: PathBuf,
    cgroup: CgroupId,
}

impl Place {
    fn new() -> Result<Self> {
        let name = format!("crab-cost-{}", std::process::id());
        let directory = PathBuf::from("/var/tmp").join(&name);
        let root = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
            .into_iter()
            .map(Path::new)
            .find(|root| root.join("cgroup.procs").exists())
            .ok_or("no cgroup v2 hierarchy")?;
        let merged = directory.join("merged");
        for part in ["lower", "upper", "work", "merged", "tools"] {
            fs::create_dir_all(directory.join(part))?;
        }
        let group = root.join(name);
        fs::create_dir(&group)?;
        let cgroup = CgroupId(fs::metadata(&group)?.ino());
        let place = Self {
            directory,
            merged,
            group,
            cgroup,
        };
        let on = place.directory.display();
        let options = format!("lowerdir={on}/lower,upperdir={on}/upper,workdir={on}/work");
        let options = std::ffi::CString::new(options)?;
        mount(
            "crab-cost",
            &place.merged,
            "overlay",
            MountFlags::empty(),
            Some(options.as_c_str()),
        )?;
        place.prepare()?;
        Ok(place)
    }

    fn prepare(&self) -> Result<()> {
        let tools = self.directory.join("tools");
        let files = tools.join("f");
        for i in 0..40 {
            let directory = files.join(i.to_string());
            fs::create_dir_all(&directory)?;
            for j in 0..40 {
                let line = format!("line {i} {j} of a small file\n");
                fs::write(directory.join(j.to_string()), line.repeat(40))?;
            }
        }
        let mut unit =
            String::from("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n");
        for i in 0..200 {
            unit += &format!(
                "static int f{i}(int a) {{ for (int j = 0; j < a; j++) a += printf(\"%d\", j); return a; }}\n\
                 int (*p{i})(int) = f{i};\n"
            );
        }
        fs::write(tools.join("unit.c"), unit)?;
        let mut tar = Command::new("tar");
        tar.arg("cf").arg("files.tar").arg("f").current_dir(&tools);
        if !tar.status()?.success() {
            return Err("tar fails".into());
        }
        Ok(())
    }

    fn open(&self, programs: Programs) -> Result<Tracer> {
        let mut tracer = Tracer::open_first_of(&self.directory.join("pins"), &[programs])?;
        let device = Device::from_st_dev(fs::metadata(&self.merged)?.dev());
        tracer.watch(self.cgroup, &[device])?;
        Ok(tracer)
    }

    /// The CPU time of all that has run in the cgroup, in seconds.
    fn used(&self) -> Result<f64> {
        let stat = fs::read_to_string(self.group.join("cpu.stat"))?;
        let usage = stat.lines().find_map(|l| l.strip_prefix("usage_usec "));
        Ok(usage.ok_or("no usage in cpu.stat")?.parse::<f64>()? / 1e6)
    }

    /// The CPU time that this takes, in seconds.
    fn work(&self, script: &str) -> Result<f64> {
        let at = self.merged.join("work");
        fs::create_dir(&at)?;
        let before = self.used()?;
        let whole = format!(
            "echo 0 > {}/cgroup.procs; set -e; {script}",
            self.group.display()
        );
        let status = Command::new("sh")
            .args(["-c", &whole])
            .current_dir(&at)
            .env("T", self.directory.join("tools"))
            .env("HOME", &self.directory)
            .env("GIT_AUTHOR_NAME", "x")
            .env("GIT_AUTHOR_EMAIL", "x@x")
            .env("GIT_COMMITTER_NAME", "x")
            .env("GIT_COMMITTER_EMAIL", "x@x")
            .status()?;
        let taken = self.used()? - before;
        fs::remove_dir_all(&at)?;
        if !status.success() {
            return Err(format!("{script:?} fails").into());
        }
        Ok(taken)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = unmount(&self.merged, UnmountFlags::DETACH);
        let _ = fs::remove_dir_all(&self.directory);
        let _ = fs::remove_dir(&self.group);
    }
}

/// The best of several rounds: the machine's other work only ever adds.
fn best(calls: u32, mut call: impl FnMut()) -> f64 {
    (0..ROUNDS)
        .map(|_| {
            let started = Instant::now();
            for _ in 0..calls {
                call();
            }
            started.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
        })
        .fold(f64::INFINITY, f64::min)
}

fn getppid() -> f64 {
    best(CALLS, || {
        std::hint::black_box(rustix::process::getppid());
    })
}

fn write(file: &mut File) -> f64 {
    best(CALLS, || {
        // A failed write would show in the figure, not here.
        let _ = file.write(b"x");
    })
}

/// One page of new memory.
fn fault() -> f64 {
    const PAGES: usize = 256;
    best(1, || {
        // SAFETY: a new private mapping that nobody else has, written within its bounds.
        unsafe {
            let pages = libc::mmap(
                std::ptr::null_mut(),
                PAGES * 4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(pages, libc::MAP_FAILED);
            for page in 0..PAGES {
                pages.cast::<u8>().add(page * 4096).write_volatile(1);
            }
            libc::munmap(pages, PAGES * 4096);
        }
    }) / PAGES as f64
}
