// SPDX-License-Identifier: Apache-2.0
//! Output on its way from a process to its client; once the client is gone, to nowhere.

use std::{io, sync::Arc};

use tokio::{net::unix::pipe, sync::watch};

use crate::{
    stdio::{CHUNK, Client},
    terminal::Terminal,
};

/// Where output goes until the client is gone; then nowhere, and the client's FIFOs
/// are let go.
struct Outlet {
    client: Option<Arc<Client>>,
    gone: watch::Receiver<bool>,
    to_stderr: bool,
    /// The client was not to be reached; said once.
    failed: bool,
}

impl Outlet {
    fn new(client: Arc<Client>, to_stderr: bool) -> Self {
        Self {
            gone: client.gone(),
            client: Some(client),
            to_stderr,
            failed: false,
        }
    }

    /// Ends when the client is gone; never if it was before.
    async fn closed(&mut self) {
        if self.client.is_some() {
            let _ = self.gone.wait_for(|gone| *gone).await;
            self.client = None;
        } else {
            std::future::pending().await
        }
    }

    async fn deliver(&mut self, data: &[u8]) {
        let Some(client) = self.client.clone() else {
            return;
        };
        tokio::select! {
            written = client.write(self.to_stderr, data) => {
                if let Err(error) = written
                    && !std::mem::replace(&mut self.failed, true)
                {
                    tracing::warn!(%error, "output is dropped");
                }
            }
            () = self.closed() => {}
        }
    }
}

pub(crate) async fn relay_output(pipe: pipe::Receiver, client: Arc<Client>, to_stderr: bool) {
    let mut outlet = Outlet::new(client, to_stderr);
    let mut buffer = vec![0; CHUNK];
    loop {
        tokio::select! {
            ready = pipe.readable() => {
                if ready.is_err() {
                    return;
                }
            }
            () = outlet.closed() => continue,
        }
        match pipe.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => outlet.deliver(&buffer[..count]).await,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

pub(crate) async fn relay_terminal(terminal: Arc<Terminal>, client: Arc<Client>) {
    let mut outlet = Outlet::new(client, false);
    let mut buffer = vec![0; CHUNK];
    loop {
        tokio::select! {
            // A terminal whose last process is gone reads as EIO.
            read = terminal.read(&mut buffer) => match read {
                Ok(0) | Err(_) => return,
                Ok(count) => outlet.deliver(&buffer[..count]).await,
            },
            () = outlet.closed() => {}
        }
    }
}
