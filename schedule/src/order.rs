// SPDX-License-Identifier: Apache-2.0
//! Who comes before whom.

use crate::{
    job::{Job, JobId},
    time::Time,
};

/// How the next job is chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Policy {
    /// Strictly as they came.
    Fifo,
    /// What an agent waits for first, then as they came.
    Reactive,
    /// What an agent waits for first, then what an agent is expected to wait for soonest.
    #[default]
    Predictive,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Fifo, Self::Reactive, Self::Predictive];

    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::Reactive => "reactive",
            Self::Predictive => "predictive",
        }
    }
}

/// The place of a job among others that want the same; the least is the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// An agent does not wait for it.
    in_background: bool,
    /// Its sandbox has had more than its share.
    over_share: bool,
    key: Time,
    id: JobId,
}

impl Policy {
    /// The place of a job that is to be captured.
    pub(crate) fn to_capture(self, id: JobId, job: &Job, over_share: bool) -> Place {
        let place = |in_background, over_share, key| Place {
            in_background,
            over_share,
            key,
            id,
        };
        match (self, job.gated) {
            (Self::Fifo, _) => place(false, false, Time(0)),
            (Self::Reactive, Some(since)) => place(false, false, since),
            (Self::Reactive, None) => place(true, false, Time(0)),
            // By when it would be over had it begun at once: a short one goes before a long one
            // that came with it, and none is overtaken by what comes much later.
            (Self::Predictive, Some(since)) => place(false, over_share, since + job.cost),
            // By when it has to begin at the latest.
            (Self::Predictive, None) => place(true, over_share, job.deadline - job.cost),
        }
    }

    /// The place of one that is to be published: the next capture of its sandbox may wait for
    /// that, and comes after the wait that goes on now.
    pub(crate) fn to_publish(self, id: JobId, job: &Job) -> Place {
        let (in_background, key) = match (self, job.gated) {
            (Self::Fifo, _) => (false, Time(0)),
            (_, Some(since)) => (false, since),
            (Self::Reactive, None) => (true, Time(0)),
            (Self::Predictive, None) => (true, job.deadline),
        };
        Place {
            in_background,
            over_share: false,
            key,
            id,
        }
    }
}
