// SPDX-License-Identifier: Apache-2.0
//! What a turn needs, from what is known of it. Pure: no clock, no I/O.
//!
//! The kernel's counters answer "may files have changed?" without a false no; the
//! set of processes answers the same for processes. What they cannot exclude is
//! looked at, and what the look found gives the class.

use crab_api::tracer::Effects;
use crab_runtime::procs::Difference;
use crab_store::Class;

/// What the counters say of the time since an earlier reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Nothing that could have changed a file.
    FilesUntouched,
    /// Files may have changed.
    FilesMaybe,
    /// The counters cannot be used, for this reason.
    Unobserved(String),
}

/// Compares two readings of the counters. `unseen`: a process had or has the means
/// to write with no system call.
pub(crate) fn seen(before: Option<&Effects>, now: &Result<Effects, String>, unseen: bool) -> Seen {
    let now = match now {
        Ok(now) => now,
        Err(reason) => return Seen::Unobserved(reason.clone()),
    };
    let Some(before) = before else {
        return Seen::Unobserved("counting began only now".into());
    };
    if before.instance != now.instance {
        return Seen::Unobserved("counting was interrupted".into());
    }
    if now.lost != before.lost {
        return Seen::Unobserved(format!(
            "{} events were lost",
            now.lost.wrapping_sub(before.lost)
        ));
    }
    // Through a shared mapping or an io_uring, files change with no event: where
    // one was made since, or was there before or now (`unseen`), they may have.
    let moved =
        now.files != before.files || now.mounts != before.mounts || now.unseen != before.unseen;
    if moved || unseen {
        Seen::FilesMaybe
    } else {
        Seen::FilesUntouched
    }
}

/// What the processes need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProcessHalf {
    /// The newest checkpoint's still holds.
    Unchanged,
    /// Nothing is left that needs an image, and before there was.
    Gone(String),
    /// Those that were there have run: what they hold now has to tell.
    Ran(String),
    /// An image, for this reason.
    Image(String),
}

impl ProcessHalf {
    pub(crate) fn needs_image(&self) -> bool {
        matches!(self, Self::Image(_))
    }

    /// The same of processes that may have gone on since.
    pub(crate) fn went_on(self) -> Self {
        match self {
            Self::Unchanged => Self::Ran("processes that went on until the freeze".into()),
            other => other,
        }
    }

    /// Whether the processes have to stand still for it.
    pub(crate) fn needs_freeze(&self) -> bool {
        matches!(self, Self::Image(_) | Self::Ran(_))
    }
}

/// What is known of the processes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessEvidence {
    /// No process matters now.
    pub(crate) none_now: bool,
    /// Some are there all the same, which are ignored.
    pub(crate) others_now: bool,
    /// Some did when the newest checkpoint was taken.
    pub(crate) some_before: bool,
    /// How they differ; nothing if there is no earlier record to compare with.
    pub(crate) difference: Option<Difference>,
}

/// Decides on the process half.
pub(crate) fn process_half(evidence: ProcessEvidence) -> ProcessHalf {
    match evidence {
        ProcessEvidence {
            none_now: true,
            some_before: false,
            ..
        } => ProcessHalf::Unchanged,
        ProcessEvidence {
            none_now: true,
            some_before: true,
            others_now,
            ..
        } => match others_now {
            false => ProcessHalf::Gone("the last process ended".into()),
            // A checkpoint has all that is there.
            true => ProcessHalf::Image("the last process that matters ended".into()),
        },
        ProcessEvidence {
            difference: None, ..
        } => ProcessHalf::Image("processes that were not recorded before".into()),
        ProcessEvidence {
            difference: Some(difference),
            ..
        } => {
            let only_ran = difference.started + difference.ended == 0;
            let what = format!("processes: {difference}");
            match difference.ran {
                0 if only_ran => ProcessHalf::Unchanged,
                1.. if only_ran => ProcessHalf::Ran(what),
                _ => ProcessHalf::Image(what),
            }
        }
    }
}

/// The class, from both halves: how many paths changed that matter, and how many that do
/// not. These call for nothing; what another change calls for holds them too.
pub(crate) fn class(relevant: usize, ignored: usize, processes: &ProcessHalf) -> Class {
    let processes = *processes != ProcessHalf::Unchanged;
    Class::of(relevant > 0 || ignored > 0 && processes, processes)
}

/// The class's reason, in one line.
pub(crate) fn reason(
    seen: &Seen,
    changed: usize,
    ignored: usize,
    processes: &ProcessHalf,
) -> String {
    let mut files = match (seen, changed) {
        _ if changed == 0 && ignored > 0 => "nothing else changed".to_string(),
        (Seen::FilesUntouched, 0) => "no file was touched".to_string(),
        (_, 0) => "files as before".to_string(),
        (_, 1) => "1 path changed".to_string(),
        (_, n) => format!("{n} paths changed"),
    };
    if ignored > 0 {
        files = match ignored {
            1 => format!("1 path is ignored, {files}"),
            n => format!("{n} paths are ignored, {files}"),
        };
    }
    match processes {
        ProcessHalf::Unchanged => files,
        ProcessHalf::Gone(why) | ProcessHalf::Ran(why) | ProcessHalf::Image(why) => {
            format!("{files}; {why}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effects(files: u64, unseen: u64) -> Effects {
        Effects {
            instance: "a".into(),
            files,
            unseen,
            ..Default::default()
        }
    }

    #[test]
    fn only_equal_counters_of_one_instance_say_untouched() {
        let base = effects(5, 0);
        assert_eq!(
            seen(Some(&base), &Ok(effects(5, 0)), false),
            Seen::FilesUntouched
        );
        assert_eq!(
            seen(Some(&base), &Ok(effects(6, 0)), false),
            Seen::FilesMaybe
        );
        let mounted = Effects {
            mounts: 1,
            ..effects(5, 0)
        };
        assert_eq!(seen(Some(&base), &Ok(mounted), false), Seen::FilesMaybe);
        let forked = Effects {
            processes: 9,
            ..effects(5, 0)
        };
        assert_eq!(seen(Some(&base), &Ok(forked), false), Seen::FilesUntouched);
    }

    #[test]
    fn a_shared_mapping_keeps_the_question_open_while_it_lives() {
        let base = effects(5, 0);
        let made = Ok(effects(5, 1));
        assert_eq!(seen(Some(&base), &made, false), Seen::FilesMaybe);
        let later = effects(5, 1);
        assert_eq!(seen(Some(&later), &made, true), Seen::FilesMaybe);
        assert_eq!(seen(Some(&later), &made, false), Seen::FilesUntouched);
    }

    #[test]
    fn whatever_interrupts_the_counting_is_unobserved() {
        let base = effects(5, 0);
        let other = Effects {
            instance: "b".into(),
            ..effects(5, 0)
        };
        let lost = Effects {
            lost: 2,
            ..effects(5, 0)
        };
        for now in [Ok(other), Ok(lost), Err("crabd is away".to_string())] {
            assert!(
                matches!(seen(Some(&base), &now, false), Seen::Unobserved(_)),
                "{now:?}"
            );
        }
        assert!(matches!(
            seen(None, &Ok(effects(5, 0)), false),
            Seen::Unobserved(_)
        ));
    }

    #[test]
    fn the_processes_decide_by_set_then_by_progress() {
        let none = Difference::default();
        let half = |none_now, some_before, difference| {
            process_half(ProcessEvidence {
                none_now,
                others_now: false,
                some_before,
                difference,
            })
        };
        assert_eq!(half(true, false, Some(none)), ProcessHalf::Unchanged);
        assert!(matches!(half(true, true, Some(none)), ProcessHalf::Gone(_)));
        assert_eq!(half(false, true, Some(none)), ProcessHalf::Unchanged);
        let ended = Difference { ended: 1, ..none };
        assert!(matches!(
            half(false, true, Some(ended)),
            ProcessHalf::Image(_)
        ));
        assert!(matches!(half(false, true, None), ProcessHalf::Image(_)));
        let beside_others = |some_before| {
            process_half(ProcessEvidence {
                none_now: true,
                others_now: true,
                some_before,
                difference: None,
            })
        };
        assert_eq!(beside_others(false), ProcessHalf::Unchanged);
        assert!(matches!(beside_others(true), ProcessHalf::Image(_)));
    }

    #[test]
    fn only_the_same_processes_are_compared_by_what_they_hold() {
        let half = |difference| {
            process_half(ProcessEvidence {
                none_now: false,
                others_now: false,
                some_before: true,
                difference: Some(difference),
            })
        };
        let ran = Difference {
            ran: 1,
            ..Difference::default()
        };
        assert_eq!(half(ran), ProcessHalf::Ran("processes: 1 ran".into()));
        assert!(half(ran).needs_freeze() && !half(ran).needs_image());
        let also_ended = Difference { ended: 1, ..ran };
        assert!(matches!(half(also_ended), ProcessHalf::Image(_)));
        assert_eq!(half(Difference::default()), ProcessHalf::Unchanged);
    }

    #[test]
    fn the_class_is_the_sum_of_the_halves() {
        let image = ProcessHalf::Image("x".into());
        assert_eq!(class(0, 0, &ProcessHalf::Unchanged), Class::None);
        assert_eq!(class(2, 0, &ProcessHalf::Unchanged), Class::Files);
        assert_eq!(class(0, 0, &image), Class::Processes);
        assert_eq!(class(1, 0, &image), Class::Full);
        let gone = ProcessHalf::Gone("x".into());
        assert_eq!(class(0, 0, &gone), Class::Processes);
    }

    #[test]
    fn what_is_ignored_calls_for_nothing_and_is_in_what_is_called_for() {
        let image = ProcessHalf::Image("x".into());
        assert_eq!(class(0, 5, &ProcessHalf::Unchanged), Class::None);
        assert_eq!(class(1, 5, &ProcessHalf::Unchanged), Class::Files);
        assert_eq!(class(0, 5, &image), Class::Full);
        let reason =
            |changed, ignored| reason(&Seen::FilesMaybe, changed, ignored, &ProcessHalf::Unchanged);
        assert_eq!(reason(0, 5), "5 paths are ignored, nothing else changed");
        assert_eq!(reason(2, 1), "1 path is ignored, 2 paths changed");
    }
}
