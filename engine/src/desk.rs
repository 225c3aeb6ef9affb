// SPDX-License-Identifier: Apache-2.0
//! The scheduler at work: what shims ask, put to [`crab_schedule`], and its decisions for those
//! who wait for them.
//!
//! It holds nothing that a shim would not say again: a job is made from whatever question names it
//! first, at the step that the question says.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crab_config::Config;
use crab_schedule::{
    Budgets, Decision, End, JobId, Request, Scheduler, Settings, Stage, Time, cpu_pressure,
};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout_at};
use tracing::{debug, info};

use crate::registry::Liveness;
use crate::shim::Shim;

/// Where the kernel says how much processes wait for a processor.
pub(crate) const PRESSURE: &str = "/proc/pressure/cpu";

/// What the clock shows when crabd begins: waits go on that began before it.
const BEGINNING: Time = Time(24 * 3600 * 1_000_000);

/// What a job is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// To be captured.
    Capture,
    /// Captured, to be published.
    Publish,
}

/// What is said to whoever asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Go,
    Wait,
    GiveUp,
}

/// A sandbox and a turn of it.
type Name = (Arc<str>, u64);

/// A job as shims name it.
#[derive(Debug)]
struct Known {
    id: JobId,
    /// The newest step that it may take, which it may have been told already.
    may: Option<Step>,
    gave_up: bool,
}

pub(crate) struct Desk {
    started: Instant,
    inner: Mutex<Inner>,
    /// Something was decided.
    moved: Notify,
    /// Something was noted, so that time alone may decide something at another time.
    noted: Notify,
}

pub(crate) struct Inner {
    pub(crate) scheduler: Scheduler,
    jobs: HashMap<Name, Known>,
    names: HashMap<JobId, Name>,
    /// By sandbox: whose the jobs are.
    shims: HashMap<Arc<str>, (u32, Shim)>,
}

/// What the configuration says, with what it leaves to the host.
pub(crate) fn settings(config: &Config) -> Settings {
    let limit = |number: u64| Some(number).filter(|number| *number > 0);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let dumps = limit(config.schedule.dumps).and_then(|dumps| usize::try_from(dumps).ok());
    Settings {
        policy: config.schedule.policy,
        budgets: Budgets {
            dumps: dumps.unwrap_or(processors),
            // One more than processors: one may wait for the disk.
            publishers: processors + 1,
            disk_bytes_per_s: limit(config.schedule.disk_bytes_per_s),
            staging_bytes: Some(
                limit(config.schedule.staging_bytes).unwrap_or_else(|| memory() / 4),
            ),
        },
        ..Settings::default()
    }
}

/// All of the host's, in bytes.
fn memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

impl Desk {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            started: Instant::now(),
            inner: Mutex::new(Inner {
                scheduler: Scheduler::new(settings, BEGINNING),
                jobs: HashMap::new(),
                names: HashMap::new(),
                shims: HashMap::new(),
            }),
            moved: Notify::new(),
            noted: Notify::new(),
        }
    }

    pub(crate) fn now(&self) -> Time {
        BEGINNING + self.started.elapsed()
    }

    pub(crate) fn inner(&self) -> MutexGuard<'_, Inner> {
        // Each operation leaves it whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers when the job may take the step, or after `patience`.
    pub(crate) async fn ask(
        &self,
        request: Request,
        step: Step,
        shim: u32,
        patience: Duration,
    ) -> Answer {
        let until = tokio::time::Instant::now() + patience;
        let name: Name = (request.sandbox.clone(), request.turn);
        self.inner().note(self.now(), request, step, shim);
        loop {
            // Registered before the look, so that nothing is missed in between.
            let mut moved = std::pin::pin!(self.moved.notified());
            moved.as_mut().enable();
            self.decide();
            let answer = self.inner().answer(&name, step);
            if answer != Answer::Wait {
                return answer;
            }
            if timeout_at(until, moved).await.is_err() {
                return Answer::Wait;
            }
        }
    }

    /// Whether there is no job that has not ended.
    pub(crate) fn is_empty(&self) -> bool {
        self.inner().scheduler.jobs().next().is_none()
    }

    /// A job has ended.
    pub(crate) fn end(&self, sandbox: &str, turn: u64, end: End) {
        let now = self.now();
        let mut inner = self.inner();
        if let Some(known) = inner.jobs.remove(&(Arc::from(sandbox), turn)) {
            inner.names.remove(&known.id);
            inner.scheduler.end(now, known.id, end);
        }
        drop(inner);
        self.decide();
    }

    /// Has the scheduler decide, and wakes whoever it concerns.
    fn decide(&self) {
        let now = self.now();
        let mut inner = self.inner();
        let decisions = inner.scheduler.decide(now);
        for decision in &decisions {
            inner.follow(*decision);
        }
        drop(inner);
        if !decisions.is_empty() {
            self.moved.notify_waiters();
        }
        self.noted.notify_one();
    }

    /// Decides what comes of time alone, for as long as crabd lives.
    pub(crate) async fn keep_time(&self) {
        loop {
            let next = self.inner().scheduler.next();
            let pause = next.map(|at| at.since(self.now()));
            tokio::select! {
                () = self.noted.notified() => {}
                () = sleep(pause.unwrap_or(Duration::MAX)) => self.decide(),
            }
        }
    }

    /// Looks whose shims are gone, and how busy the host is.
    pub(crate) fn sweep(&self) {
        let now = self.now();
        let mut inner = self.inner();
        if inner.scheduler.jobs().next().is_some()
            && let Ok(text) = std::fs::read_to_string(PRESSURE)
            && let Some(pressure) = cpu_pressure(&text)
        {
            inner.scheduler.pressure(pressure);
        }
        inner.sweep(now);
        drop(inner);
        self.decide();
    }
}

impl Inner {
    /// Makes the job what the question says that it is.
    fn note(&mut self, now: Time, request: Request, step: Step, shim: u32) {
        let name: Name = (request.sandbox.clone(), request.turn);
        let earlier = self.shims.get(&name.0).map(|(pid, _)| *pid);
        // A sandbox has one capture at a time, and one shim: that another has ended was not
        // heard.
        let is_over = |turn: u64| turn < name.1 || earlier.is_some_and(|pid| pid != shim);
        self.end_those(now, &name.0, is_over);
        if earlier != Some(shim) {
            match Shim::hold(shim) {
                Ok(held) => {
                    self.shims.insert(name.0.clone(), (shim, held));
                }
                // It asks, so it lives; that it cannot be watched ends its jobs by time.
                Err(error) => debug!(%error, "a shim that asks cannot be held"),
            }
        }
        let bytes = request.bytes;
        let Some(known) = self.jobs.get_mut(&name) else {
            let stage = match step {
                Step::Capture => Stage::Asks,
                Step::Publish => Stage::Captured(bytes),
            };
            let known = Known {
                id: self.scheduler.enter(now, request, stage),
                may: None,
                gave_up: false,
            };
            self.names.insert(known.id, name.clone());
            self.jobs.insert(name, known);
            return;
        };
        let held = request.gated.is_some();
        if step == Step::Publish {
            self.scheduler.captured(now, known.id, bytes);
        }
        self.scheduler.gate(now, known.id, held);
    }

    /// Ends the jobs of these turns of a sandbox.
    fn end_those(&mut self, now: Time, sandbox: &str, is_over: impl Fn(u64) -> bool) {
        let over = self
            .jobs
            .extract_if(|(of, turn), _| &**of == sandbox && is_over(*turn));
        for (_, known) in over {
            self.names.remove(&known.id);
            self.scheduler
                .end(now, known.id, End::Void("its end was not heard".into()));
        }
    }

    fn follow(&mut self, decision: Decision) {
        let (id, step) = match decision {
            Decision::Capture(id) => (id, Some(Step::Capture)),
            Decision::Publish(id) => (id, Some(Step::Publish)),
            Decision::GiveUp(id) => (id, None),
        };
        let name = self.names.get(&id);
        let Some(known) = name.and_then(|name| self.jobs.get_mut(name)) else {
            return;
        };
        known.may = step;
        known.gave_up = step.is_none();
    }

    fn answer(&mut self, name: &Name, step: Step) -> Answer {
        let Some(known) = self.jobs.get(name) else {
            // It ended while this was on its way: nobody else will say so.
            return Answer::Go;
        };
        if known.gave_up {
            // Until the shim says that it knows: it may have asked anew meanwhile, and who
            // asked before hears nothing.
            return Answer::GiveUp;
        }
        if known.may == Some(step) {
            Answer::Go
        } else {
            Answer::Wait
        }
    }

    fn sweep(&mut self, now: Time) {
        let gone: Vec<Arc<str>> = self
            .shims
            .iter()
            .filter(|(_, (_, shim))| !shim.lives())
            .map(|(sandbox, _)| sandbox.clone())
            .collect();
        for sandbox in gone {
            info!(%sandbox, "its shim has ended, and its jobs with it");
            self.shims.remove(&sandbox);
            self.scheduler.gone(now, &sandbox, "its shim ended");
            self.jobs.retain(|(of, _), _| *of != sandbox);
        }
        // Those that ended by time, and whose shims never said another word.
        let open: std::collections::HashSet<JobId> =
            self.scheduler.jobs().map(|job| job.id).collect();
        self.jobs
            .retain(|_, known| known.gave_up || open.contains(&known.id));
        let jobs = &self.jobs;
        self.names.retain(|_, name| jobs.contains_key(name));
    }
}

#[cfg(test)]
mod tests {
    use crab_schedule::{Class, State};

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(20);

    fn desk() -> Arc<Desk> {
        let mut config = Config::default();
        config.schedule.dumps = 1;
        Arc::new(Desk::new(settings(&config)))
    }

    fn request(sandbox: &str, held: Option<Duration>) -> Request {
        Request {
            sandbox: Arc::from(sandbox),
            turn: 7,
            class: Class::Full,
            bytes: 10,
            weight: 100,
            waits: [].into_iter().collect(),
            waiting: Duration::ZERO,
            gated: held,
            gate_limit: Duration::from_secs(2),
        }
    }

    async fn ask(desk: &Desk, sandbox: &str, step: Step, patience: Duration) -> Answer {
        let shim = std::process::id();
        desk.ask(request(sandbox, None), step, shim, patience).await
    }

    fn states(desk: &Desk) -> Vec<(String, State)> {
        let inner = desk.inner();
        let jobs = inner.scheduler.jobs();
        jobs.map(|job| (job.sandbox.to_string(), job.state))
            .collect()
    }

    #[tokio::test]
    async fn who_waits_is_told_as_soon_as_there_is_room() {
        let desk = desk();
        assert_eq!(ask(&desk, "d/a", Step::Capture, SHORT).await, Answer::Go);
        assert_eq!(ask(&desk, "d/b", Step::Capture, SHORT).await, Answer::Wait);
        let waits = tokio::spawn({
            let desk = desk.clone();
            async move { ask(&desk, "d/b", Step::Capture, LONG).await }
        });
        tokio::task::yield_now().await;
        assert_eq!(ask(&desk, "d/a", Step::Publish, SHORT).await, Answer::Go);
        assert_eq!(waits.await.unwrap(), Answer::Go);
        desk.end("d/a", 7, End::Durable);
        assert_eq!(states(&desk), [("d/b".into(), State::Capturing)]);
        desk.end("d/b", 7, End::Failed("it broke".into()));
        assert!(desk.is_empty());
    }

    #[tokio::test]
    async fn what_was_held_back_for_too_long_is_given_up_until_that_is_heard() {
        let desk = desk();
        assert_eq!(ask(&desk, "d/a", Step::Capture, SHORT).await, Answer::Go);
        let held = request("d/b", Some(Duration::from_secs(3)));
        let shim = std::process::id();
        let answer = desk.ask(held, Step::Capture, shim, LONG).await;
        assert_eq!(answer, Answer::GiveUp);
        assert_eq!(desk.inner().scheduler.counts().given_up, 1);
        // Whoever asks at the same time is told the same, and nobody that it may go ahead.
        assert_eq!(
            ask(&desk, "d/b", Step::Capture, SHORT).await,
            Answer::GiveUp
        );
        desk.end("d/b", 7, End::GivenUp);
        assert_eq!(desk.inner().scheduler.counts().given_up, 1);
        assert_eq!(ask(&desk, "d/b", Step::Capture, SHORT).await, Answer::Wait);
    }

    #[tokio::test]
    async fn time_alone_gives_up_what_is_held_back() {
        let desk = desk();
        let clock = desk.clone();
        let clock = tokio::spawn(async move { clock.keep_time().await });
        assert_eq!(ask(&desk, "d/a", Step::Capture, SHORT).await, Answer::Go);
        let mut held = request("d/b", Some(Duration::ZERO));
        held.gate_limit = SHORT;
        let shim = std::process::id();
        let answer = desk.ask(held, Step::Capture, shim, LONG).await;
        assert_eq!(answer, Answer::GiveUp);
        clock.abort();
    }

    #[tokio::test]
    async fn one_that_is_new_knows_its_jobs_when_each_is_asked_for_once_more() {
        let before = desk();
        assert_eq!(ask(&before, "d/a", Step::Capture, SHORT).await, Answer::Go);
        assert_eq!(
            ask(&before, "d/b", Step::Capture, SHORT).await,
            Answer::Wait
        );
        let after = desk();
        // Captured meanwhile, and still waiting.
        assert_eq!(ask(&after, "d/a", Step::Publish, SHORT).await, Answer::Go);
        assert_eq!(ask(&after, "d/b", Step::Capture, SHORT).await, Answer::Go);
        let expected = [
            ("d/a".into(), State::Publishing),
            ("d/b".into(), State::Capturing),
        ];
        assert_eq!(states(&after), expected);
    }

    #[tokio::test]
    async fn jobs_end_with_their_shim() {
        let desk = desk();
        let mut shim = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let asked = request("d/a", None);
        let answer = desk.ask(asked, Step::Capture, shim.id(), SHORT).await;
        assert_eq!(answer, Answer::Go);
        assert_eq!(ask(&desk, "d/b", Step::Capture, SHORT).await, Answer::Wait);
        shim.kill().unwrap();
        shim.wait().unwrap();
        desk.sweep();
        assert_eq!(ask(&desk, "d/b", Step::Capture, SHORT).await, Answer::Go);
    }
}
