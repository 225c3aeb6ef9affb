// SPDX-License-Identifier: Apache-2.0
//! crabd's life: elected, counting, serving, until it is idle or told to stop.
//!
//! Shutdown, in this order: the state closes (requests in flight are told to
//! come again), the socket goes, connections end, and the lock with the
//! process. A crabd started meanwhile waits for the lock.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use crab_api::paths;
use crab_api::schedule_ttrpc::create_schedule;
use crab_api::tracer_ttrpc::create_tracer;
use crab_api::ttrpc::r#async::Server;
use crab_api::ttrpc::r#async::transport::Listener;
use crab_config::Config;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{info, warn};

use crate::arguments::Arguments;
use crate::desk::{self, Desk};
use crate::desk_service::DeskService;
use crate::endpoint::{Election, Lock, elect, listen, remove};
use crate::metrics::Metrics;
use crate::programs;
use crate::readiness::{READY, STOPPING, tell};
use crate::retention::Retention;
use crate::service::Service;
use crate::state::State;

/// How often to look for dead shims and idleness.
const SWEEP: Duration = Duration::from_millis(500);

/// For how long connections may take to end.
const FAREWELL: Duration = Duration::from_secs(1);

fn lend_programs(socket: &Path, lock: &Lock) -> anyhow::Result<()> {
    programs::lend(listen(socket, lock)?).context("start to lend")
}

pub(crate) async fn run(arguments: &Arguments, config: &Config) -> anyhow::Result<()> {
    let socket = &arguments.socket(config);
    // Before the election: none of them may kill a crabd that holds the lock.
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;

    let lock = match elect(socket, arguments.claim())? {
        Election::Won(lock) => lock,
        Election::Lost => {
            info!("another crabd already serves {}", socket.display());
            return Ok(());
        }
    };
    let lending = paths::programs_socket(socket.parent().unwrap_or(Path::new("/")));
    // Without, shims run their runtimes as they are.
    if let Err(error) = lend_programs(&lending, &lock) {
        warn!("not lending programs: {error:#}");
    }
    let service = Service::new(State::open(&arguments.pin_dir, &config.inspector));
    let listener =
        UnixListener::from_std(listen(socket, &lock)?).context("hand the socket to the runtime")?;
    let desk = Arc::new(Desk::new(desk::settings(config)));
    let clock = desk.clone();
    let clock = tokio::spawn(async move { clock.keep_time().await });
    let mut server = Server::new()
        .add_listener(Listener::from(listener))
        .register_service(create_tracer(Arc::new(service.clone())))
        .register_service(create_schedule(Arc::new(DeskService(desk.clone()))));
    server.start().await.context("start to serve")?;
    info!("serving {}", socket.display());
    tell(READY);

    let retention = Retention::begin(config).unwrap_or_else(|error| {
        warn!("the limit of the host is not kept: no thread for it: {error}");
        None
    });

    let metrics = arguments.metrics(config).and_then(|address| {
        let begun = Metrics::begin(address, config, service.clone(), desk.clone());
        begun
            .inspect_err(|error| {
                warn!("no metrics: {error:#}; name another address in metrics.listen");
            })
            .ok()
    });

    let mut tick = interval(SWEEP);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let why = loop {
        tokio::select! {
            _ = terminate.recv() => break "SIGTERM",
            _ = interrupt.recv() => break "SIGINT",
            _ = tick.tick() => {
                desk.sweep();
                let now = Instant::now();
                let mut state = service.state();
                state.sweep(now);
                if desk.is_empty()
                    && arguments.idle_exit().is_some_and(|limit| state.is_idle(limit, now)) {
                    // Under the same lock: no watch can slip in between.
                    state.close();
                    break "idle";
                }
            }
        }
    };

    info!("stopping: {why}");
    tell(STOPPING);
    clock.abort();
    service.state().close();
    if let Some(metrics) = &metrics {
        metrics.stop();
    }
    for socket in [socket, &lending] {
        if let Err(error) = remove(socket) {
            warn!("remove {}: {error}", socket.display());
        }
    }
    if timeout(FAREWELL, server.shutdown()).await.is_err() {
        warn!("connections are still open");
    }
    if let Some(retention) = retention {
        retention.end();
    }
    if let Some(metrics) = metrics {
        metrics.ended();
    }
    drop(lock);
    Ok(())
}
