// SPDX-License-Identifier: Apache-2.0

//! A shim of `default/demo` that speaks the real protocol and has no container behind it.

use std::{fs, sync::Arc};

use crab_api::{paths, sandbox_ttrpc, ttrpc::asynchronous::Server};

use super::Host;

/// Serves it on a host, for as long as this is there.
pub(crate) struct Served {
    runtime: tokio::runtime::Runtime,
    server: Option<Server>,
}

impl Served {
    pub(crate) fn begin(host: &Host, shim: Arc<dyn sandbox_ttrpc::Sandbox + Send + Sync>) -> Self {
        let run = host.path("run");
        fs::create_dir_all(paths::sandbox_dir(&run, "default", "demo")).unwrap();
        let address = format!("unix://{}", host.path("shim.sock").display());
        fs::write(paths::sandbox_address(&run, "default", "demo"), &address).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let server = runtime.block_on(async {
            let mut server = Server::new()
                .bind(&address)
                .unwrap()
                .register_service(sandbox_ttrpc::create_sandbox(shim));
            server.start().await.unwrap();
            server
        });
        Self {
            runtime,
            server: Some(server),
        }
    }

    /// Answers nobody any more.
    pub(crate) fn end(&mut self) {
        let mut server = self.server.take().unwrap();
        self.runtime.block_on(server.shutdown()).unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = self.runtime.block_on(server.shutdown());
        }
    }
}
