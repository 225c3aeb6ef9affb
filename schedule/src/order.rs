// SPDX-License-Identifier: Apache-2.0
//! Who comes before whom.

use crab_config::Policy;

use crate::{
    job::{Job, JobId},
    time::Time,
};

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

impl Place {
    /// That of a job that is to be captured.
    pub(crate) fn to_capture(policy: Policy, id: JobId, job: &Job, over_share: bool) -> Self {
        let place = |in_background, over_share, key| Place {
            in_background,
            over_share,
            key,
            id,
        };
        match (policy, job.gated) {
            (Policy::Fifo, _) => place(false, false, Time(0)),
            (Policy::Reactive, Some(since)) => place(false, false, since),
            (Policy::Reactive, None) => place(true, false, Time(0)),
            // By when it would be over had it begun at once: a short one goes before a long one
            // that came with it, and none is overtaken by what comes much later.
            (Policy::Predictive, Some(since)) => place(false, over_share, since + job.cost),
            // By when it has to begin at the latest.
            (Policy::Predictive, None) => place(true, over_share, job.deadline - job.cost),
        }
    }

    /// That of one that is to be published: the next capture of its sandbox may wait for
    /// that, and comes after the wait that goes on now.
    pub(crate) fn to_publish(policy: Policy, id: JobId, job: &Job) -> Self {
        let (in_background, key) = match (policy, job.gated) {
            (Policy::Fifo, _) => (false, Time(0)),
            (_, Some(since)) => (false, since),
            (Policy::Reactive, None) => (true, Time(0)),
            (Policy::Predictive, None) => (true, job.deadline),
        };
        Self {
            in_background,
            over_share: false,
            key,
            id,
        }
    }
}
