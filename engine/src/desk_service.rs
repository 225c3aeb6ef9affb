// SPDX-License-Identifier: Apache-2.0
//! The Schedule service: questions in, answers out, nothing decided here.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use crab_api::schedule::{
    AskRequest, AskResponse, EndRequest, EndResponse, Job, JobsRequest, JobsResponse,
};
use crab_api::schedule_ttrpc::Schedule;
use crab_api::ttrpc::r#async::TtrpcContext;
use crab_api::ttrpc::{self, Code};
use crab_schedule::{Class, End, Ended, JobView, Request, Time, WHOLE};

use crate::desk::{Answer, Desk, Step};

/// The longest for which an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(crate) struct DeskService(pub(crate) Arc<Desk>);

fn refused(what: &str) -> ttrpc::Error {
    ttrpc::Error::RpcStatus(ttrpc::get_status(Code::INVALID_ARGUMENT, what))
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn class(word: &str) -> Option<Class> {
    Class::ALL.into_iter().find(|class| class.as_str() == word)
}

fn step(word: &str) -> Option<Step> {
    Some(match word {
        "capture" => Step::Capture,
        "publish" => Step::Publish,
        _ => return None,
    })
}

#[async_trait]
impl Schedule for DeskService {
    async fn ask(&self, _: &TtrpcContext, asked: AskRequest) -> ttrpc::Result<AskResponse> {
        let Some(class) = class(&asked.class) else {
            return Err(refused("class is none of files, processes and full"));
        };
        let Some(step) = step(&asked.step) else {
            return Err(refused("step is none that is known"));
        };
        if asked.sandbox.is_empty() {
            return Err(refused("no sandbox is named"));
        }
        let millis = |ms: u32| Duration::from_millis(ms.into());
        let request = Request {
            sandbox: Arc::from(asked.sandbox),
            turn: asked.turn,
            class,
            bytes: asked.bytes,
            weight: match asked.weight {
                0 => WHOLE,
                weight => weight,
            },
            waits: asked.waits_ms.into_iter().map(millis).collect(),
            waiting: millis(asked.waiting_ms),
            gated: asked.held.then(|| millis(asked.held_ms)),
            gate_limit: millis(asked.hold_limit_ms),
        };
        let patience = millis(asked.patience_ms).min(PATIENCE);
        let answer = self.0.ask(request, step, asked.shim_pid, patience).await;
        let mut response = AskResponse::new();
        response.answer = match answer {
            Answer::Go => "go",
            Answer::Wait => "wait",
            Answer::GiveUp => "give-up",
        }
        .to_owned();
        Ok(response)
    }

    async fn end(&self, _: &TtrpcContext, ended: EndRequest) -> ttrpc::Result<EndResponse> {
        let end = match ended.end.as_str() {
            "durable" => End::Durable,
            "void" => End::Void(ended.reason),
            "failed" => End::Failed(ended.reason),
            "given-up" => End::GivenUp,
            _ => return Err(refused("end is none that is known")),
        };
        self.0.end(&ended.sandbox, ended.turn, end);
        Ok(EndResponse::new())
    }

    async fn jobs(&self, _: &TtrpcContext, _: JobsRequest) -> ttrpc::Result<JobsResponse> {
        let now = self.0.now();
        let inner = self.0.inner();
        let scheduler = &inner.scheduler;
        let settings = scheduler.settings();
        let (dumps, publications, staged) = scheduler.in_use();
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let mut response = JobsResponse::new();
        response.policy = settings.policy.as_str().to_owned();
        let budgets = response.budgets.mut_or_insert_default();
        budgets.dumps = number(dumps);
        budgets.dumps_limit = number(settings.budgets.dumps);
        budgets.publications = number(publications);
        budgets.publications_limit = number(settings.budgets.publishers);
        budgets.staging_bytes = staged;
        budgets.staging_bytes_limit = settings.budgets.staging_bytes.unwrap_or(0);
        budgets.disk_bytes_per_s = settings.budgets.disk_bytes_per_s.unwrap_or(0);
        response.jobs = scheduler.jobs().map(|job| open(&job, now)).collect();
        let mut ended: Vec<Job> = scheduler.ended().map(|job| closed(job, now)).collect();
        ended.reverse();
        response.ended = ended;
        let counted = scheduler.counts();
        let counts = response.counts.mut_or_insert_default();
        counts.captures = counted.captures;
        counts.publications = counted.publications;
        counts.ungranted = counted.ungranted;
        counts.durable = counted.durable;
        counts.void = counted.void;
        counts.failed = counted.failed;
        counts.given_up = counted.given_up;
        Ok(response)
    }
}

fn open(view: &JobView, now: Time) -> Job {
    let mut job = Job::new();
    job.sandbox = view.sandbox.to_string();
    job.turn = view.turn;
    job.class = view.class.as_str().to_owned();
    job.state = view.state.as_str().to_owned();
    job.waits = !view.granted;
    job.since_ms = ms(now.since(view.since));
    job.held = view.gated.is_some();
    job.held_ms = view.gated.map_or(0, |since| ms(now.since(since)));
    job.cost_ms = ms(view.cost);
    let left = ms(view.deadline.since(now)) as i64;
    job.goes_on_ms = left - ms(now.since(view.deadline)) as i64;
    job.bytes = view.bytes;
    job.weight = view.weight;
    job
}

fn closed(ended: &Ended, now: Time) -> Job {
    let mut job = Job::new();
    job.sandbox = ended.sandbox.to_string();
    job.turn = ended.turn;
    job.class = ended.class.as_str().to_owned();
    job.state = ended.end.state().as_str().to_owned();
    job.since_ms = ms(now.since(ended.at));
    job.reason = ended.end.reason().to_owned();
    job
}
