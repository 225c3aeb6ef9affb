// SPDX-License-Identifier: Apache-2.0
//! Being the shim: one ttrpc server with the Task service under both of its names
//! and the Sandbox service, until containerd lets go.

use std::{
    collections::HashMap,
    fs,
    os::{
        fd::{FromRawFd, OwnedFd},
        unix::net::UnixListener,
    },
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use containerd_shim_protos::shim_async::{Task, create_task};
use crab_api::sandbox_ttrpc::create_sandbox;
use crab_config::Config;
use crab_runtime::reaper::Reaper;
use tokio::{sync::Notify, time::timeout};
use ttrpc::r#async::{Server, Service, transport::Listener};

use crate::{
    args::Args,
    containers::Containers,
    control::Control,
    oom::OomWatcher,
    programs::Programs,
    publisher::Publisher,
    sandbox::Host,
    start::{ADDRESS_FILE, LISTENER_FD},
    task::TaskService,
};

/// The environment variable in which containerd names its ttrpc socket.
const TTRPC_ADDRESS: &str = "TTRPC_ADDRESS";

/// How long a shim that ends waits for its last events and answers.
const FAREWELL: Duration = Duration::from_secs(6);

/// The Task service under the names of containerd 1.x (v2) and 2.x (v3): the
/// messages are the same.
fn task_services(service: Arc<dyn Task + Send + Sync>) -> HashMap<String, Service> {
    let mut services = HashMap::new();
    for version in ["v2", "v3"] {
        for (_, registered) in create_task(service.clone()) {
            services.insert(format!("containerd.task.{version}.Task"), registered);
        }
    }
    services
}

/// Serves until containerd has the shim shut down.
pub(crate) fn serve(args: &Args, config: Config, config_fault: Option<String>) -> Result<()> {
    // Before any other thread: it waits for every child of this process.
    let reaper = Reaper::start().context("become a subreaper")?;
    // SAFETY: `start` hands the listening socket over at this number, and nothing
    // in this process has opened a descriptor that could have taken it.
    let listener = unsafe { OwnedFd::from_raw_fd(LISTENER_FD) };
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::CLOEXEC)
        .context("no listening socket was handed over; a shim is started by containerd")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(32)
        .thread_keep_alive(Duration::from_secs(2))
        .build()?;
    let listener = UnixListener::from(listener);
    runtime.block_on(run(args, config, config_fault, reaper, listener))
}

async fn run(
    args: &Args,
    config: Config,
    config_fault: Option<String>,
    reaper: Reaper,
    listener: UnixListener,
) -> Result<()> {
    let ttrpc_socket =
        std::env::var(TTRPC_ADDRESS).unwrap_or_else(|_| format!("{}.ttrpc", args.address));
    let (publisher, sending) =
        Publisher::start(PathBuf::from(ttrpc_socket), args.namespace.clone());
    let address = fs::read_to_string(ADDRESS_FILE).context("read the address in the bundle")?;
    let host = Arc::new(Host {
        programs: Arc::new(Programs::lent_by_crabd(&config.run_dir)),
        config,
        config_fault,
        reaper,
        publisher,
        oom: OomWatcher::default(),
        namespace: args.namespace.clone(),
        address: address.clone(),
    });
    let shutdown = Arc::new(Notify::new());
    let containers = Containers::default();
    let task = Arc::new(TaskService {
        host: host.clone(),
        containers: containers.clone(),
        shutdown: shutdown.clone(),
    });
    listener.set_nonblocking(true)?;
    let mut server = Server::new()
        .add_listener(Listener::try_from(listener)?)
        .register_service(task_services(task))
        .register_service(create_sandbox(Arc::new(Control { containers })));
    server.start().await.context("serve")?;
    shutdown.notified().await;
    // The answer to Shutdown itself still has to go out.
    let _ = timeout(FAREWELL, server.shutdown()).await;
    drop(server);
    drop(host);
    let _ = timeout(FAREWELL, sending).await;
    let _ = fs::remove_file(address.trim_start_matches("unix://"));
    Ok(())
}
