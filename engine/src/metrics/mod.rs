// SPDX-License-Identifier: Apache-2.0
//! What an operator wants to know of the host, for Prometheus: off unless it is asked for.
//!
//! ```text
//! journals of the store --what has come since--> history  --+
//! state, desk, /proc, sizes of packs ---as they are------> now --+--> text --HTTP--> who scrapes
//! ```
//! Turns are counted from their journals, which are read when somebody asks: so no shim has to report
//! anything, none of its turns waits for it, and the counts are those of what is so. What crabd itself
//! knows is looked at then, too.
//!
//! All of it is on a thread of its own and of low priority. Who asks too often is answered with the text
//! of before, and who is slow holds up others who ask at most.

mod history;
mod listen;
mod now;
mod process;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use crab_config::Config;
use crab_store::{Follow, FollowFrom, OpenError, Store};
use prometheus_client::encoding::{prometheus_text, text};
use prometheus_client::registry::Registry;
use rustix::process::{getpriority_process, setpriority_process};
use tokio::sync::Notify;
use tracing::{debug, info, warn};

use self::history::History;
use self::now::Now;
use crate::desk::Desk;
use crate::service::Service;

/// As `nice` has it.
const NICENESS: i32 = 10;
/// Who asks again within this time is told the same.
const FRESH: Duration = Duration::from_secs(1);

/// Answers whoever scrapes, until it is ended.
pub(crate) struct Metrics {
    stop: Arc<Notify>,
    thread: JoinHandle<()>,
}

impl Metrics {
    /// Begins to answer at this address.
    pub(crate) fn begin(
        address: std::net::SocketAddr,
        config: &Config,
        service: Service,
        desk: Arc<Desk>,
    ) -> anyhow::Result<Self> {
        let listener =
            std::net::TcpListener::bind(address).with_context(|| format!("listen at {address}"))?;
        listener.set_nonblocking(true).context("listen")?;
        let address = listener.local_addr().context("listen")?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("start its runtime")?;
        let stop = Arc::new(Notify::new());
        let stopped = stop.clone();
        let config = config.clone();
        let work = move || {
            // Without, it is as any other thread.
            if getpriority_process(None).is_ok_and(|nice| nice < NICENESS) {
                let _ = setpriority_process(None, NICENESS);
            }
            // It looks at every journal and every pack: nothing for the thread that answers shims.
            let scrape = Scrape::new(&config, service, desk);
            runtime.block_on(async {
                tokio::select! {
                    () = stopped.notified() => {}
                    ended = listen::serve(listener, scrape) => {
                        if let Err(error) = ended {
                            warn!("metrics are not served any more: {error}");
                        }
                    }
                }
            });
        };
        let thread = thread::Builder::new()
            .name("metrics".into())
            .spawn(work)
            .context("start a thread")?;
        info!("metrics at http://{address}/metrics");
        Ok(Self { stop, thread })
    }

    /// Has it end. One that is looking at the store ends after that.
    pub(crate) fn stop(&self) {
        self.stop.notify_one();
    }

    /// Waits until it has ended.
    pub(crate) fn ended(self) {
        if self.thread.join().is_err() {
            warn!("the thread of the metrics panicked");
        }
    }
}

/// In which form a scraper wants them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    OpenMetrics,
    /// Prometheus's own, which everybody reads.
    Prometheus,
}

impl Form {
    /// What the header `Accept` asks for.
    fn accepted(accept: &str) -> Self {
        match accept.contains("application/openmetrics-text") {
            true => Self::OpenMetrics,
            false => Self::Prometheus,
        }
    }

    fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Everything that is told.
pub(crate) struct Scrape {
    store: PathBuf,
    registry: Registry,
    history: History,
    now: Now,
    follow: Option<Follow>,
    /// Where in journals it begins: what was there when crabd began was counted by another one.
    from: FollowFrom,
    looked: Option<Instant>,
}

impl Scrape {
    fn new(config: &Config, service: Service, desk: Arc<Desk>) -> Self {
        let mut registry = Registry::default();
        let history = History::new(&mut registry);
        let now = Now::new(&mut registry, config, service, desk);
        let mut scrape = Self {
            store: config.store.clone(),
            registry,
            history,
            now,
            follow: None,
            from: FollowFrom::Now,
            looked: None,
        };
        scrape.look();
        scrape
    }

    fn look(&mut self) {
        let store = self.follow();
        if let Some(follow) = &mut self.follow {
            let history = &mut self.history;
            match follow.look(&mut |_, record| history.count(&record)) {
                Ok(faults) => {
                    for (sandbox, error) in faults {
                        warn!("turns of {sandbox} are not counted: {error}");
                    }
                }
                Err(error) => debug!("turns are not counted: {error}"),
            }
        }
        self.now.look(store.as_ref());
        self.looked = Some(Instant::now());
    }

    /// The store, and that it is followed; nothing where Crab has not run yet.
    fn follow(&mut self) -> Option<Store> {
        let opened = Store::open(&self.store).and_then(|store| {
            if self.follow.is_none() {
                self.follow = Some(Follow::begin(store.clone(), None, self.from)?);
            }
            Ok(store)
        });
        match opened {
            Ok(store) => Some(store),
            Err(OpenError::NoStore(_)) => {
                // All that is in one that is made later is new.
                self.from = FollowFrom::Beginning;
                None
            }
            Err(error) => {
                debug!("turns are not counted: {error}");
                None
            }
        }
    }

    /// The text for a scraper.
    ///
    /// # Errors
    /// When a metric cannot be written down, which is a fault of the program.
    fn text(&mut self, form: Form) -> io::Result<String> {
        if self.looked.is_none_or(|looked| looked.elapsed() >= FRESH) {
            self.look();
        }
        let mut body = String::new();
        match form {
            Form::OpenMetrics => text::encode(&mut body, &self.registry),
            Form::Prometheus => prometheus_text::encode(&mut body, &self.registry),
        }
        .map_err(io::Error::other)?;
        Ok(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_reads_open_metrics_says_so() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;q=0.3";
        assert_eq!(Form::accepted(prometheus), Form::OpenMetrics);
        for accept in ["", "*/*", "text/html"] {
            assert_eq!(Form::accepted(accept), Form::Prometheus);
        }
    }
}
