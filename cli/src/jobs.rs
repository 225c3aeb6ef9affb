// SPDX-License-Identifier: Apache-2.0

//! `crab jobs`: whose capture comes when, as crabd has it.

use std::{collections::HashMap, time::Duration};

use crab_api::{
    paths,
    schedule::{self, JobsRequest, JobsResponse},
    schedule_ttrpc::ScheduleClient,
    ttrpc::context,
};
use crab_config::Config;
use serde::Serialize;
use tokio::time::timeout;

use crate::{
    context::Context,
    error::{CliError, Code},
    output::{NOTHING, cell, duration, or_nothing, size, table},
};

/// It answers in microseconds; on a host that is busy, later.
const LIMIT: Duration = Duration::from_secs(5);
/// As long as `crab ps` waits for what it can do without.
const SHORT_LIMIT: Duration = Duration::from_millis(500);

#[derive(Serialize)]
struct Jobs {
    policy: String,
    budgets: Budgets,
    /// In the order in which they came.
    jobs: Vec<Job>,
    /// The newest that have ended, the newest first.
    ended: Vec<Job>,
    counts: Counts,
}

#[derive(Serialize)]
struct Budgets {
    dumps: u32,
    dumps_limit: u32,
    publications: u32,
    publications_limit: u32,
    staging_bytes: u64,
    staging_bytes_limit: Option<u64>,
    disk_bytes_per_s: Option<u64>,
}

#[derive(Serialize)]
struct Job {
    sandbox: String,
    turn: u64,
    class: String,
    state: String,
    /// Of one that is publishing: it waits for the disk.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    waits: bool,
    /// For how long it has been in that state.
    since_ms: u64,
    /// For how long something of the sandbox's is held back for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_ms: Option<u64>,
    #[serde(flatten)]
    foretold: Option<Foretold>,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
}

/// Of one that has not ended.
#[derive(Serialize)]
struct Foretold {
    /// What its capture is expected to take.
    cost_ms: u64,
    /// When its agent is expected to go on; negative if it should have.
    goes_on_ms: i64,
    bytes: u64,
    weight: u32,
}

#[derive(Serialize)]
struct Counts {
    captures: u64,
    publications: u64,
    ungranted: u64,
    durable: u64,
    void: u64,
    failed: u64,
    given_up: u64,
}

pub(crate) async fn run(context: &Context) -> Result<String, CliError> {
    let response = asked(&context.config, LIMIT).await.map_err(|why| {
        CliError::new(
            Code::Failed,
            "cannot tell of jobs".to_owned(),
            why,
            "`crab doctor` says how crabd is; without it, each sandbox is captured by itself",
        )
    })?;
    context.answer(&Jobs::of(response), text)
}

/// The states of sandboxes that have a job; none where crabd does not say.
pub(crate) async fn states(config: &Config) -> HashMap<String, String> {
    let jobs = asked(config, SHORT_LIMIT).await.map(|it| it.jobs);
    let jobs = jobs.unwrap_or_default().into_iter();
    jobs.map(|job| (job.sandbox, job.state)).collect()
}

async fn asked(config: &Config, limit: Duration) -> Result<JobsResponse, String> {
    let socket = paths::crabd_socket(&config.run_dir);
    let client = crab_api::connect(&socket)
        .await
        .map_err(|error| format!("crabd does not run ({error})"))?;
    let client = ScheduleClient::new(client);
    let nothing = JobsRequest::new();
    let asked = client.jobs(context::with_duration(limit), &nothing);
    match timeout(limit, asked).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("crabd said nothing for {} ms", limit.as_millis())),
    }
}

impl Jobs {
    fn of(response: JobsResponse) -> Self {
        let limit = |number: u64| Some(number).filter(|number| *number > 0);
        let budgets = response.budgets.unwrap_or_default();
        let counts = response.counts.unwrap_or_default();
        let jobs = |jobs: Vec<schedule::Job>, open: bool| {
            jobs.into_iter().map(|job| Job::of(job, open)).collect()
        };
        Self {
            policy: response.policy,
            budgets: Budgets {
                dumps: budgets.dumps,
                dumps_limit: budgets.dumps_limit,
                publications: budgets.publications,
                publications_limit: budgets.publications_limit,
                staging_bytes: budgets.staging_bytes,
                staging_bytes_limit: limit(budgets.staging_bytes_limit),
                disk_bytes_per_s: limit(budgets.disk_bytes_per_s),
            },
            jobs: jobs(response.jobs, true),
            ended: jobs(response.ended, false),
            counts: Counts {
                captures: counts.captures,
                publications: counts.publications,
                ungranted: counts.ungranted,
                durable: counts.durable,
                void: counts.void,
                failed: counts.failed,
                given_up: counts.given_up,
            },
        }
    }
}

impl Job {
    fn of(job: schedule::Job, open: bool) -> Self {
        Self {
            sandbox: job.sandbox,
            turn: job.turn,
            class: job.class,
            state: job.state,
            waits: job.waits,
            since_ms: job.since_ms,
            held_ms: job.held.then_some(job.held_ms),
            foretold: open.then_some(Foretold {
                cost_ms: job.cost_ms,
                goes_on_ms: job.goes_on_ms,
                bytes: job.bytes,
                weight: job.weight,
            }),
            reason: job.reason,
        }
    }
}

fn text(jobs: &Jobs) -> String {
    let ms = |ms: u64| duration(ms.saturating_mul(1000));
    let rows = jobs.jobs.iter().chain(&jobs.ended).map(|job| {
        let foretold = job.foretold.as_ref();
        let waits = job.state == "publishing" && job.waits;
        [
            cell(&job.sandbox, 60),
            job.turn.to_string(),
            job.class.clone(),
            job.state.clone() + if waits { " (waits)" } else { "" },
            ms(job.since_ms),
            or_nothing(job.held_ms.map(ms)),
            or_nothing(foretold.map(|it| ms(it.cost_ms))),
            or_nothing(foretold.map(|it| match u64::try_from(it.goes_on_ms) {
                Ok(left) => ms(left),
                Err(_) => "late".to_owned(),
            })),
            or_nothing(foretold.map(|it| size(it.bytes))),
            cell(
                match job.reason.as_str() {
                    "" => NOTHING,
                    reason => reason,
                },
                100,
            ),
        ]
    });
    let header = [
        "SANDBOX", "TURN", "CLASS", "STATE", "SINCE", "HELD", "COST", "GOES ON", "BYTES", "NOTE",
    ];
    let (budgets, counts) = (&jobs.budgets, &jobs.counts);
    let limit = |limit: Option<u64>| limit.map_or_else(|| "any".to_owned(), size);
    format!(
        "{}policy {}, {} of {} dumps, {} of {} publications, {} of {} staged, {}/s to the disk\n\
         {} durable, {} void, {} failed ({} given up), {} captured without being scheduled\n",
        table(header, &[1, 4, 5, 6, 7, 8], rows),
        jobs.policy,
        budgets.dumps,
        budgets.dumps_limit,
        budgets.publications,
        budgets.publications_limit,
        size(budgets.staging_bytes),
        limit(budgets.staging_bytes_limit),
        limit(budgets.disk_bytes_per_s),
        counts.durable,
        counts.void,
        counts.failed,
        counts.given_up,
        counts.ungranted,
    )
}
