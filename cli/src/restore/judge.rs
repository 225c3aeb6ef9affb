// SPDX-License-Identifier: Apache-2.0

//! Which sandboxes `crab restore --all` brings back, and why the others not: decided here, from what
//! the journal, the shim and whoever made the container say. No I/O.

use crab_store::{Client, Life, Lost, TurnId};

use crate::output::utc;

/// What is known of a sandbox, as far as it was asked for.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) client: Client,
    /// It is a copy that was nobody's yet: see `crab fork --warm`.
    pub(super) is_spare: bool,
    /// By its journal, or why that does not say.
    pub(super) life: Result<Life, String>,
    /// How its shim says that it is; nothing if there is none.
    pub(super) state: Option<String>,
    /// The checkpoint that holds its newest state, or why that is not known.
    pub(super) head: Result<Option<TurnId>, String>,
}

/// What containerd or Docker says of its container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Container {
    /// It is there.
    There {
        /// Whoever has it starts it again by itself when it is not running.
        restarts: bool,
    },
    /// It is not there any more.
    Removed,
    /// Another one has its name now.
    Another,
}

/// What is to become of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is started again, from this checkpoint.
    Restore(TurnId),
    /// It was started anew by a policy, and nobody has used it: it is rolled back.
    RollBack(TurnId),
    /// Nothing, and nothing is wrong.
    Leave(Why),
    /// It was lost, and cannot come back.
    Fail(String),
}

/// Why it is left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Runs,
    /// Of what was lost this checkpoint is left.
    RunsAnew(Option<TurnId>),
    Ended {
        exit: u32,
        at_ms: u64,
    },
    NotKnown,
    OfPod,
    Spare,
    /// Its shim has seen that it ended, and does not say how yet.
    JustEnded,
    Removed(Client),
    Another,
}

impl Why {
    /// In the words of a summary, behind their number.
    pub(super) fn of_many(&self) -> &'static str {
        match self {
            Self::Runs => "running",
            Self::RunsAnew(_) => "started anew",
            Self::Ended { .. } => "ended",
            Self::NotKnown => "not known to have run",
            Self::OfPod => "of pods",
            Self::Spare => "standing by",
            Self::JustEnded => "ended just now",
            Self::Removed(_) | Self::Another => "removed",
        }
    }

    pub(super) fn text(&self) -> String {
        match self {
            Self::Runs => "it runs".to_owned(),
            Self::RunsAnew(Some(turn)) => format!(
                "it runs: it was started anew after it was lost, and not by a restart policy, or was \
                 used since; `crab rollback --turn {turn}` brings back what it was"
            ),
            Self::RunsAnew(None) => {
                "it runs: it was started anew after it was lost, and had no checkpoint".to_owned()
            }
            Self::Ended { exit, at_ms } => {
                format!("it had ended, with {exit}, at {}", utc(*at_ms))
            }
            Self::NotKnown => {
                "its journal does not say that it ran here, or is of a crab that did not note ends; \
                 `crab restore` of it alone does not ask"
                    .to_owned()
            }
            Self::OfPod => "it is of a pod, whose containers Kubernetes replaces".to_owned(),
            Self::Spare => {
                "it stood by for a `crab fork`, which makes another one in its place".to_owned()
            }
            Self::JustEnded => {
                "it has ended, and its shim has not noted how; `crab restore` of it alone brings it back"
                    .to_owned()
            }
            Self::Removed(client) => format!("{} has no such container any more", name(*client)),
            Self::Another => "another container has its name now".to_owned(),
        }
    }
}

fn name(client: Client) -> &'static str {
    match client {
        Client::Docker => "Docker",
        Client::Containerd | Client::Kubernetes => "containerd",
    }
}

/// Decides. Nothing, if it takes to know how its container is: then [`with_container`] does.
pub(super) fn without_container(known: &Known) -> Option<Verdict> {
    let live = known.state.as_deref().is_some_and(|it| it != "stopped");
    let lost = match &known.life {
        _ if known.client == Client::Kubernetes => return Some(Verdict::Leave(Why::OfPod)),
        _ if known.is_spare => return Some(Verdict::Leave(Why::Spare)),
        Ok(Life::Open { .. }) if known.state.is_some() && !live => {
            return Some(Verdict::Leave(Why::JustEnded));
        }
        Ok(Life::Open { lost, .. }) => lost,
        _ if live => return Some(Verdict::Leave(Why::Runs)),
        Err(why) => return Some(Verdict::Fail(why.clone())),
        Ok(Life::Unknown) => return Some(Verdict::Leave(Why::NotKnown)),
        Ok(Life::Ended(end)) => {
            return Some(Verdict::Leave(Why::Ended {
                exit: end.exit,
                at_ms: end.at_ms,
            }));
        }
    };
    match lost {
        // Whether a policy did it is for the container to say.
        Some(Lost {
            checkpoint: Some(_),
            unused: true,
        }) if live => None,
        Some(lost) if live => Some(Verdict::Leave(Why::RunsAnew(lost.checkpoint))),
        _ if live => Some(Verdict::Leave(Why::Runs)),
        _ => None,
    }
}

/// The same, with what is known of its container.
pub(super) fn with_container(known: &Known, container: &Container) -> Verdict {
    if let Some(verdict) = without_container(known) {
        return verdict;
    }
    let restarts = match container {
        Container::Removed => return Verdict::Leave(Why::Removed(known.client)),
        Container::Another => return Verdict::Leave(Why::Another),
        Container::There { restarts } => *restarts,
    };
    let live = known.state.as_deref().is_some_and(|it| it != "stopped");
    match &known.life {
        Ok(Life::Open {
            lost: Some(Lost { checkpoint, .. }),
            ..
        }) if live => match checkpoint {
            Some(checkpoint) if restarts => Verdict::RollBack(*checkpoint),
            checkpoint => Verdict::Leave(Why::RunsAnew(*checkpoint)),
        },
        // A policy started it, and it was lost once more before anybody used it.
        Ok(Life::Open {
            lost:
                Some(Lost {
                    checkpoint: Some(checkpoint),
                    unused: true,
                }),
            ..
        }) if restarts => Verdict::Restore(*checkpoint),
        _ => match &known.head {
            Ok(Some(head)) => Verdict::Restore(*head),
            Ok(None) => Verdict::Fail("it has no checkpoint".to_owned()),
            Err(why) => Verdict::Fail(why.clone()),
        },
    }
}

#[cfg(test)]
mod tests {
    use crab_store::{BeganRecord, EndedRecord};

    use super::*;

    const THERE: Container = Container::There { restarts: false };
    const RESTARTS: Container = Container::There { restarts: true };

    fn open(lost: Option<Lost>) -> Life {
        Life::Open {
            began: BeganRecord {
                at_ms: 1,
                boot: "b".to_owned(),
                turn: TurnId(3),
                anew: true,
            },
            lost,
        }
    }

    fn known(life: Life, state: Option<&str>) -> Known {
        Known {
            client: Client::Docker,
            is_spare: false,
            life: Ok(life),
            state: state.map(str::to_owned),
            head: Ok(Some(TurnId(7))),
        }
    }

    #[test]
    fn what_was_lost_comes_back_if_its_container_is_there() {
        let lost = known(open(None), None);
        assert_eq!(without_container(&lost), None);
        let restored = Verdict::Restore(TurnId(7));
        assert_eq!(with_container(&lost, &THERE), restored);
        let removed = Verdict::Leave(Why::Removed(Client::Docker));
        assert_eq!(with_container(&lost, &Container::Removed), removed);
        let another = Verdict::Leave(Why::Another);
        assert_eq!(with_container(&lost, &Container::Another), another);
        for head in [Ok(None), Err("its manifest is damaged".to_owned())] {
            let bare = Known {
                head,
                ..known(open(None), None)
            };
            assert!(matches!(with_container(&bare, &THERE), Verdict::Fail(_)));
        }
    }

    #[test]
    fn what_runs_or_ended_or_is_not_known_is_left() {
        let spare = Known {
            is_spare: true,
            ..known(open(None), None)
        };
        assert_eq!(without_container(&spare), Some(Verdict::Leave(Why::Spare)));
        let left = |known: &Known| match without_container(known) {
            Some(Verdict::Leave(why)) => why,
            verdict => panic!("{verdict:?}"),
        };
        for state in ["running", "paused", "created"] {
            assert_eq!(left(&known(open(None), Some(state))), Why::Runs);
            assert_eq!(left(&known(Life::Unknown, Some(state))), Why::Runs);
        }
        let ended = Life::Ended(EndedRecord {
            at_ms: 5,
            exit: 3,
            with_host: false,
        });
        for state in [None, Some("stopped")] {
            let why = left(&known(ended.clone(), state));
            assert_eq!(why, Why::Ended { exit: 3, at_ms: 5 });
        }
        assert_eq!(left(&known(Life::Unknown, None)), Why::NotKnown);
        let mut damaged = known(Life::Unknown, Some("running"));
        damaged.life = Err("its journal is damaged".to_owned());
        assert_eq!(left(&damaged), Why::Runs);
        damaged.state = None;
        assert!(matches!(
            without_container(&damaged),
            Some(Verdict::Fail(_))
        ));
        let mut of_pod = known(open(None), None);
        of_pod.client = Client::Kubernetes;
        assert_eq!(left(&of_pod), Why::OfPod);
    }

    #[test]
    fn what_a_policy_started_anew_is_rolled_back_unless_it_was_used() {
        let lost = |unused| {
            Some(Lost {
                checkpoint: Some(TurnId(2)),
                unused,
            })
        };
        let unused = known(open(lost(true)), Some("running"));
        let back = Verdict::RollBack(TurnId(2));
        assert_eq!(with_container(&unused, &RESTARTS), back);
        // By hand: whoever did it wanted it so.
        let anew = Verdict::Leave(Why::RunsAnew(Some(TurnId(2))));
        assert_eq!(with_container(&unused, &THERE), anew);
        let used = known(open(lost(false)), Some("running"));
        assert_eq!(with_container(&used, &RESTARTS), anew);
        // Lost once more, by whoever started it.
        let again = known(open(lost(true)), None);
        let [first, newest] = [2, 7].map(|turn| Verdict::Restore(TurnId(turn)));
        assert_eq!(with_container(&again, &RESTARTS), first);
        assert_eq!(with_container(&again, &THERE), newest);
        let used = known(open(lost(false)), None);
        assert_eq!(with_container(&used, &RESTARTS), newest);
        let stopped = known(open(None), Some("stopped"));
        let just_ended = Verdict::Leave(Why::JustEnded);
        assert_eq!(with_container(&stopped, &THERE), just_ended);
    }
}
