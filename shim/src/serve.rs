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
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use containerd_shim_protos::shim_async::{Task, create_task};
use crab_api::sandbox_ttrpc::create_sandbox;
use crab_config::Config;
use crab_runtime::{descriptors, reaper::Reaper};
use tokio::{sync::Notify, time::timeout};
use ttrpc::r#async::{Server, Service, transport::Listener};

use crate::{
    args::Args,
    containers::Containers,
    control::Control,
    fault,
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

/// Has the shim end.
pub(crate) struct Dismissal {
    /// Until it is dismissed.
    socket: Mutex<Option<PathBuf>>,
    rung: Notify,
}

impl Dismissal {
    pub(crate) fn new(address: &str) -> Self {
        let socket = address.trim_start_matches("unix://").into();
        Self {
            socket: Mutex::new(Some(socket)),
            rung: Notify::new(),
        }
    }

    /// Lets the shim go. From now on nobody finds it: the next container of this name, which
    /// may come as soon as this is answered, gets a shim, and a socket, of its own.
    pub(crate) fn dismiss(&self) {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(socket) = socket.take() {
            let _ = fs::remove_file(socket);
        }
        self.rung.notify_one();
    }

    async fn dismissed(&self) {
        self.rung.notified().await;
    }
}

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
    if let Err(error) = descriptors::take_all() {
        tracing::warn!(%error, "no more descriptors than a service is given");
    }
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
    fault::listen(&config.run_dir);
    let served = runtime.block_on(run(args, config, config_fault, reaper, listener));
    // Not for ever: a thread may hang in a write to a file of a dead server.
    runtime.shutdown_timeout(FAREWELL);
    served
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
        namespace: args.namespace.clone(),
        address: address.clone(),
    });
    let dismissal = Arc::new(Dismissal::new(&address));
    let containers = Containers::default();
    let task = Arc::new(TaskService {
        host: host.clone(),
        containers: containers.clone(),
        dismissal: dismissal.clone(),
    });
    listener.set_nonblocking(true)?;
    let mut server = Server::new()
        .add_listener(Listener::try_from(listener)?)
        .register_service(task_services(task))
        .register_service(create_sandbox(Arc::new(Control { containers })));
    server.start().await.context("serve")?;
    dismissal.dismissed().await;
    // The answer to Shutdown itself still has to go out.
    let _ = timeout(FAREWELL, server.shutdown()).await;
    drop(server);
    drop(host);
    let _ = timeout(FAREWELL, sending).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shim_that_was_dismissed_leaves_the_socket_of_the_next_alone() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let _ours = UnixListener::bind(&socket).unwrap();
        let dismissal = Dismissal::new(&format!("unix://{}", socket.display()));
        dismissal.dismiss();
        assert!(!socket.exists());
        let _of_the_next = UnixListener::bind(&socket).unwrap();
        dismissal.dismiss();
        assert!(socket.exists());
    }
}
