// SPDX-License-Identifier: Apache-2.0
//! The connection to crabd, and what becomes of it when an answer is late.
//!
//! ```text
//! an answer, or "no"   kept
//! silence              kept, and asked again with the next question; after another one in a
//!                      row left alone for a while, which doubles up to [`LONGEST`]
//! broken, or closing   dropped: another crabd has to be told everything
//! ```
//! A busy host makes any answer late, and one that is late says nothing about the next. A crabd
//! that hangs must not cost each turn its whole limit.

use std::time::{Duration, Instant};

use crab_api::{
    tracer::{Changes, ChangesRequest, Effects, EffectsRequest, UnwatchRequest, WatchRequest},
    tracer_ttrpc::TracerClient,
};
use thiserror::Error;
use tokio::time::timeout;
use ttrpc::{Code, context::Context as Call};

/// For how long crabd is left alone after its second silence in a row, and at most.
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(10);

/// Why there is no answer.
#[derive(Debug, Error)]
pub(super) enum NoAnswer {
    #[error("crabd does not answer in time")]
    Silent,
    /// It knows nothing of this sandbox as it is now.
    #[error("crabd was not told of the sandbox")]
    Untold,
    #[error("{0}")]
    Refused(String),
    /// Nobody is at the other end, or only for a moment yet.
    #[error("crabd does not answer: {0}")]
    Gone(String),
}

/// How often in a row there was no answer, and until when none is asked for.
#[derive(Default)]
struct Silence {
    times: u32,
    until: Option<Instant>,
}

impl Silence {
    fn lasts(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    fn again(&mut self, now: Instant) {
        self.times = self.times.saturating_add(1);
        let doubled = self.times.checked_sub(2);
        self.until = doubled.map(|times| {
            let pause = FIRST.saturating_mul(1_u32.checked_shl(times).unwrap_or(u32::MAX));
            now + pause.min(LONGEST)
        });
    }
}

/// A connection, and how far whoever is at the other end can be relied on.
struct Connection {
    client: TracerClient,
    silence: Silence,
    /// It has said that it watches the sandbox as it is now.
    watches: bool,
}

/// One at most. A question takes as long as its limit says.
#[derive(Default)]
pub(super) struct Link(Option<Connection>);

impl Link {
    pub(super) fn is_there(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn is(&mut self, client: TracerClient) {
        self.0 = Some(Connection {
            client,
            silence: Silence::default(),
            watches: false,
        });
    }

    /// Begins to watch, or goes on with what is asked for now.
    pub(super) async fn watch(
        &mut self,
        limit: Duration,
        request: &WatchRequest,
    ) -> Result<Effects, NoAnswer> {
        if let Some(connection) = &mut self.0 {
            // Until it says so: counters of what was watched before are none of all.
            connection.watches = false;
        }
        let question = async |client: &TracerClient| client.watch(Call::default(), request).await;
        let effects = self.ask(limit, question).await?;
        if let Some(connection) = &mut self.0 {
            connection.watches = true;
        }
        Ok(effects)
    }

    pub(super) async fn effects(
        &mut self,
        limit: Duration,
        request: &EffectsRequest,
    ) -> Result<Effects, NoAnswer> {
        self.watches()?;
        let question = async |client: &TracerClient| client.effects(Call::default(), request).await;
        self.ask(limit, question).await
    }

    pub(super) async fn changes(
        &mut self,
        limit: Duration,
        request: &ChangesRequest,
    ) -> Result<Changes, NoAnswer> {
        self.watches()?;
        let question = async |client: &TracerClient| client.changes(Call::default(), request).await;
        self.ask(limit, question).await
    }

    /// Ends the watch and the connection, also with one that only said that it cannot watch: it
    /// keeps the sandbox in mind nevertheless.
    pub(super) async fn end(&mut self, limit: Duration, request: &UnwatchRequest) {
        if let Some(Connection { client, .. }) = self.0.take() {
            // crabd also sees the shim go.
            let _ = timeout(limit, client.unwatch(Call::default(), request)).await;
        }
    }

    fn watches(&self) -> Result<(), NoAnswer> {
        match &self.0 {
            Some(connection) if connection.watches => Ok(()),
            _ => Err(NoAnswer::Untold),
        }
    }

    async fn ask<T>(
        &mut self,
        limit: Duration,
        question: impl AsyncFnOnce(&TracerClient) -> ttrpc::Result<T>,
    ) -> Result<T, NoAnswer> {
        let connection = self.0.as_mut().ok_or(NoAnswer::Untold)?;
        if connection.silence.lasts(Instant::now()) {
            return Err(NoAnswer::Silent);
        }
        let Ok(answer) = timeout(limit, question(&connection.client)).await else {
            connection.silence.again(Instant::now());
            return Err(NoAnswer::Silent);
        };
        connection.silence = Silence::default();
        answer.map_err(|error| match error {
            ttrpc::Error::RpcStatus(status) if status.code() != Code::UNAVAILABLE => {
                NoAnswer::Refused(status.message)
            }
            gone => {
                self.0 = None;
                NoAnswer::Gone(match gone {
                    ttrpc::Error::RpcStatus(status) => status.message,
                    other => other.to_string(),
                })
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    };

    use async_trait::async_trait;
    use crab_api::{
        connect,
        tracer::{Empty, TracerStatus},
        tracer_ttrpc::{Tracer, create_tracer},
    };
    use tokio::{net::UnixListener, sync::watch};
    use ttrpc::r#async::{Server, TtrpcContext, transport::Listener};

    use super::*;

    /// Longer than any answer takes that comes.
    const LIMIT: Duration = Duration::from_secs(20);
    /// Of one that does not come.
    const SHORT: Duration = Duration::from_millis(50);

    /// A crabd that answers when it may.
    #[derive(Default)]
    struct Slow {
        /// It keeps its answers to itself for as long as this is so.
        is_silent: watch::Sender<bool>,
        refuses: watch::Sender<Option<Code>>,
        asked: AtomicUsize,
        unwatched: AtomicBool,
    }

    impl Slow {
        async fn answer(&self) -> ttrpc::Result<Effects> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            let mut is_silent = self.is_silent.subscribe();
            let _ = is_silent.wait_for(|is_silent| !is_silent).await;
            match *self.refuses.borrow() {
                Some(code) => Err(refusal(code)),
                None => Ok(Effects::default()),
            }
        }

        fn asked(&self) -> usize {
            self.asked.load(Ordering::SeqCst)
        }

        fn is_silent(&self, is_silent: bool) {
            self.is_silent.send_replace(is_silent);
        }
    }

    fn refusal(code: Code) -> ttrpc::Error {
        ttrpc::Error::RpcStatus(ttrpc::get_status(code, "not here"))
    }

    struct Service(Arc<Slow>);

    #[async_trait]
    impl Tracer for Service {
        async fn watch(&self, _: &TtrpcContext, _: WatchRequest) -> ttrpc::Result<Effects> {
            self.0.answer().await
        }

        async fn effects(&self, _: &TtrpcContext, _: EffectsRequest) -> ttrpc::Result<Effects> {
            self.0.answer().await
        }

        async fn unwatch(&self, _: &TtrpcContext, _: UnwatchRequest) -> ttrpc::Result<Empty> {
            self.0.unwatched.store(true, Ordering::SeqCst);
            Ok(Empty::new())
        }

        async fn changes(&self, _: &TtrpcContext, _: ChangesRequest) -> ttrpc::Result<Changes> {
            self.0.answer().await.map(|_| Changes::default())
        }

        async fn status(&self, _: &TtrpcContext, _: Empty) -> ttrpc::Result<TracerStatus> {
            Err(refusal(Code::UNIMPLEMENTED))
        }
    }

    /// A link to such a crabd, which goes when the rest is dropped.
    async fn linked() -> (Link, Arc<Slow>, (Server, tempfile::TempDir)) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let slow = Arc::new(Slow::default());
        let mut server = Server::new()
            .add_listener(Listener::from(UnixListener::bind(&socket).unwrap()))
            .register_service(create_tracer(Arc::new(Service(slow.clone()))));
        server.start().await.unwrap();
        let mut link = Link::default();
        link.is(TracerClient::new(connect(&socket).await.unwrap()));
        (link, slow, (server, dir))
    }

    fn effects() -> EffectsRequest {
        EffectsRequest::default()
    }

    #[tokio::test]
    async fn after_one_late_answer_the_next_question_is_answered() {
        let (mut link, slow, _server) = linked().await;
        link.watch(LIMIT, &WatchRequest::default()).await.unwrap();
        for _ in 0..3 {
            slow.is_silent(true);
            let late = link.effects(SHORT, &effects()).await;
            assert!(matches!(late, Err(NoAnswer::Silent)), "{late:?}");
            // It comes now, and is neither taken for another's nor in the way.
            slow.is_silent(false);
            link.effects(LIMIT, &effects()).await.unwrap();
            link.changes(LIMIT, &ChangesRequest::default())
                .await
                .unwrap();
        }
    }

    #[tokio::test]
    async fn one_that_hangs_is_not_asked_each_time() {
        let (mut link, slow, _server) = linked().await;
        link.watch(LIMIT, &WatchRequest::default()).await.unwrap();
        slow.is_silent(true);
        let before = slow.asked();
        for _ in 0..50 {
            let none = link.effects(SHORT, &effects()).await;
            assert!(matches!(none, Err(NoAnswer::Silent)), "{none:?}");
        }
        // Two at once. More only if this takes seconds.
        let asked = slow.asked() - before;
        assert!(asked < 10, "{asked}");
    }

    #[test]
    fn each_silence_in_a_row_is_left_alone_for_twice_as_long() {
        let start = Instant::now();
        let mut silence = Silence::default();
        let mut pauses = Vec::new();
        for _ in 0..40 {
            silence.again(start);
            let pause = silence.until.map(|until| until - start);
            pauses.push(pause.unwrap_or_default().as_millis());
        }
        assert_eq!(pauses[..8], [0, 500, 1000, 2000, 4000, 8000, 10000, 10000]);
        assert_eq!(pauses[39], 10000);
        assert!(silence.lasts(start) && !silence.lasts(start + LONGEST));
    }

    #[tokio::test]
    async fn counters_are_of_what_crabd_has_said_that_it_watches() {
        let (mut link, slow, _server) = linked().await;
        let untold = link.effects(LIMIT, &effects()).await;
        assert!(matches!(untold, Err(NoAnswer::Untold)), "{untold:?}");
        link.watch(LIMIT, &WatchRequest::default()).await.unwrap();
        // Told of other devices, which it may not have heard.
        slow.is_silent(true);
        let late = link.watch(SHORT, &WatchRequest::default()).await;
        assert!(matches!(late, Err(NoAnswer::Silent)), "{late:?}");
        slow.is_silent(false);
        let untold = link.effects(LIMIT, &effects()).await;
        assert!(matches!(untold, Err(NoAnswer::Untold)), "{untold:?}");
        link.watch(LIMIT, &WatchRequest::default()).await.unwrap();
        link.effects(LIMIT, &effects()).await.unwrap();
    }

    #[tokio::test]
    async fn one_that_cannot_count_is_told_when_the_sandbox_ends() {
        let (mut link, slow, _server) = linked().await;
        slow.refuses.send_replace(Some(Code::FAILED_PRECONDITION));
        let refused = link.watch(LIMIT, &WatchRequest::default()).await;
        assert!(matches!(refused, Err(NoAnswer::Refused(_))), "{refused:?}");
        assert!(link.is_there());
        link.end(LIMIT, &UnwatchRequest::default()).await;
        assert!(slow.unwatched.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn one_that_goes_or_is_gone_is_let_go() {
        let (mut link, slow, _server) = linked().await;
        slow.refuses.send_replace(Some(Code::UNAVAILABLE));
        let going = link.watch(LIMIT, &WatchRequest::default()).await;
        assert!(matches!(going, Err(NoAnswer::Gone(_))), "{going:?}");
        assert!(!link.is_there());

        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        link.is(TracerClient::new(connect(&socket).await.unwrap()));
        drop(listener.accept().await.unwrap());
        let gone = link.watch(LIMIT, &WatchRequest::default()).await;
        assert!(matches!(gone, Err(NoAnswer::Gone(_))), "{gone:?}");
        assert!(!link.is_there());
    }
}
