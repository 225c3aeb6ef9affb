// SPDX-License-Identifier: Apache-2.0

//! The machine that a checkpoint is of, and what another one lacks for it.
//!
//! Files go anywhere where their image runs. Processes do not: what is in their registers and memory was
//! made by the instructions of one processor, by the system calls of one kernel and by the CRIU of
//! one version. What is sure to fail elsewhere is said before anything is tried; what only may fail
//! is tried, and then told as a difference.

use std::{collections::BTreeSet, fmt, fs, sync::OnceLock};

use serde::{Deserialize, Serialize};

use crate::text::clip;

/// Longest text of a field that is kept, in bytes.
const MAX_FIELD: usize = 256;
/// Most features of a processor that are kept.
const MAX_FEATURES: usize = 256;

/// What a program may have found its processor to have, and uses from then on without asking
/// again: the names of `/proc/cpuinfo`, x86-64. The C library chooses its string functions so. Those that an
/// update of the same processor's microcode takes away (`rtm`, `rdrand`, `rdseed`) are none of them.
const FEATURES: [&str; 59] = [
    "3dnowprefetch",
    "abm",
    "adx",
    "aes",
    "amx_bf16",
    "amx_int8",
    "amx_tile",
    "avx",
    "avx2",
    "avx512_4fmaps",
    "avx512_4vnniw",
    "avx512_bf16",
    "avx512_bitalg",
    "avx512_fp16",
    "avx512_vbmi2",
    "avx512_vnni",
    "avx512_vp2intersect",
    "avx512_vpopcntdq",
    "avx512bw",
    "avx512cd",
    "avx512dq",
    "avx512er",
    "avx512f",
    "avx512ifma",
    "avx512pf",
    "avx512vbmi",
    "avx512vl",
    "avx_vnni",
    "bmi1",
    "bmi2",
    "clflushopt",
    "clwb",
    "cx16",
    "f16c",
    "fma",
    "fma4",
    "fsgsbase",
    "gfni",
    "lahf_lm",
    "movbe",
    "movdir64b",
    "movdiri",
    "ospke",
    "pclmulqdq",
    "popcnt",
    "rdpid",
    "rdtscp",
    "sha_ni",
    "sse4_1",
    "sse4_2",
    "sse4a",
    "ssse3",
    "vaes",
    "vpclmulqdq",
    "xop",
    "xsave",
    "xsavec",
    "xsaveopt",
    "xsaves",
];

/// Where a checkpoint was taken, and by what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// Crab's version.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub crab: String,
    /// The kernel's release: `uname -r`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kernel: String,
    /// The architecture: `uname -m`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub arch: String,
    /// The features of its processors that programs use without asking again; only of images of
    /// processes.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub cpu: BTreeSet<String>,
    /// The OCI runtime's version, as it says it; only of images of processes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub runtime: String,
}

/// What a machine lacks for processes of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lacks {
    /// It is of another architecture.
    Arch {
        /// Theirs.
        taken: String,
        /// This one's.
        here: String,
    },
    /// Its processor has not all that theirs had.
    Features(Vec<String>),
}

/// How many features a message names.
const MAX_NAMED: usize = 6;

impl fmt::Display for Lacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arch { taken, here } => write!(
                f,
                "its processes were taken on a machine of {taken}, and this one is of {here}"
            ),
            Self::Features(features) => {
                let named = features[..features.len().min(MAX_NAMED)].join(", ");
                let more = features.len().saturating_sub(MAX_NAMED);
                let more = match more {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                write!(
                    f,
                    "its processes were taken on a processor with {named}{more}, which this one has not"
                )
            }
        }
    }
}

impl Machine {
    /// This one; without the features of its processor.
    pub fn here() -> Self {
        let uname = rustix::system::uname();
        Self {
            crab: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: uname.release().to_string_lossy().into_owned(),
            arch: uname.machine().to_string_lossy().into_owned(),
            ..Self::default()
        }
    }

    /// This one, with all that its processes may use.
    pub fn with_processor() -> Self {
        // They are the same for as long as a process runs, and the kernel asks each processor.
        static CPU: OnceLock<BTreeSet<String>> = OnceLock::new();
        let cpu = CPU.get_or_init(|| {
            let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
            features(&cpuinfo)
        });
        Self {
            cpu: cpu.clone(),
            ..Self::here()
        }
    }

    /// What `here` lacks for processes of this one; nothing where it is not known.
    pub fn lacking(&self, here: &Self) -> Option<Lacks> {
        let known = !self.arch.is_empty() && !here.arch.is_empty();
        if known && self.arch != here.arch {
            return Some(Lacks::Arch {
                taken: self.arch.clone(),
                here: here.arch.clone(),
            });
        }
        // One whose features cannot be read lacks nothing that is known.
        if here.cpu.is_empty() {
            return None;
        }
        let lacking: Vec<String> = self.cpu.difference(&here.cpu).cloned().collect();
        (!lacking.is_empty()).then_some(Lacks::Features(lacking))
    }

    /// The same with every text within its limit: what is imported has any size.
    pub fn bounded(mut self) -> Self {
        for text in [
            &mut self.crab,
            &mut self.kernel,
            &mut self.arch,
            &mut self.runtime,
        ] {
            *text = clip(text, MAX_FIELD);
        }
        let cpu = std::mem::take(&mut self.cpu).into_iter();
        self.cpu = cpu
            .take(MAX_FEATURES)
            .map(|it| clip(&it, MAX_FIELD))
            .collect();
        self
    }
}

/// Those of `/proc/cpuinfo` that every processor has.
fn features(cpuinfo: &str) -> BTreeSet<String> {
    let flags = cpuinfo.lines().filter_map(|line| {
        let (name, flags) = line.split_once(':')?;
        (name.trim() == "flags").then(|| -> BTreeSet<&str> { flags.split_whitespace().collect() })
    });
    let common = flags.reduce(|all, one| &all & &one).unwrap_or_default();
    let known = FEATURES.iter().filter(|name| common.contains(**name));
    known.map(|name| (*name).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(arch: &str, cpu: &[&str]) -> Machine {
        Machine {
            arch: arch.to_owned(),
            cpu: cpu.iter().map(|it| (*it).to_owned()).collect(),
            ..Machine::default()
        }
    }

    fn said(taken: &Machine, here: &Machine) -> Option<String> {
        taken.lacking(here).map(|lacks| lacks.to_string())
    }

    #[test]
    fn a_machine_says_what_it_lacks_for_processes_of_another() {
        let new = machine("x86_64", &["avx", "avx2", "avx512f"]);
        let old = machine("x86_64", &["avx"]);
        assert_eq!(said(&old, &new), None);
        assert_eq!(said(&new, &new), None);
        assert_eq!(
            said(&new, &old).unwrap(),
            "its processes were taken on a processor with avx2, avx512f, which this one has not"
        );
        assert_eq!(
            said(&new, &machine("aarch64", &[])).unwrap(),
            "its processes were taken on a machine of x86_64, and this one is of aarch64"
        );
        let many = machine("x86_64", &FEATURES);
        let text = said(&many, &machine("x86_64", &["avx"])).unwrap();
        assert!(text.contains("amx_int8 and 52 more,"), "{text}");
    }

    #[test]
    fn what_is_not_known_is_not_lacking() {
        let new = machine("x86_64", &["avx2"]);
        assert_eq!(said(&Machine::default(), &new), None);
        assert_eq!(said(&new, &machine("x86_64", &[])), None);
        assert_eq!(said(&new, &machine("", &["avx2"])), None);
    }

    #[test]
    fn only_what_every_processor_has_and_programs_use_counts() {
        let cpuinfo = "processor\t: 0\nflags\t\t: fpu avx avx2 nopl\nbugs\t\t: x\n\n\
                       processor\t: 1\nflags\t\t: fpu avx smep\n";
        assert_eq!(Vec::from_iter(features(cpuinfo)), ["avx"]);
        assert!(features("Features : fp asimd").is_empty());
        let mut sorted = FEATURES;
        sorted.sort_unstable();
        assert_eq!(sorted, FEATURES);
        // The machine that this runs on is known.
        let here = Machine::with_processor();
        assert!(!here.kernel.is_empty() && !here.arch.is_empty());
        assert!(here.arch != "x86_64" || !here.cpu.is_empty());
    }

    #[test]
    fn a_machine_of_any_size_is_cut() {
        let long = "x".repeat(9999);
        let huge = Machine {
            kernel: long.clone(),
            cpu: (0..999).map(|n| format!("{n}{long}")).collect(),
            ..Machine::default()
        };
        let cut = huge.bounded();
        assert!(cut.kernel.len() <= MAX_FIELD && cut.cpu.len() == MAX_FEATURES);
        assert!(cut.cpu.iter().all(|it| it.len() <= MAX_FIELD));
    }
}
