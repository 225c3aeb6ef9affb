// SPDX-License-Identifier: Apache-2.0
//! Output on its way from a process to its client; once the client is gone, to nowhere.
//!
//! A client that deletes a process takes leave in two steps: what the process has written by
//! then is still delivered, as nobody else sees to it that a file or a log driver gets all;
//! but a client that stalls is not waited for.

use std::{io, os::fd::AsFd, sync::Arc};

use tokio::{net::unix::pipe, sync::watch, task::consume_budget};

use crate::{
    stdio::{CHUNK, Client},
    terminal::Terminal,
};

/// How far a client has taken leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(crate) enum Leave {
    Here,
    /// It wants what there is, and nothing that comes later.
    Going,
    Gone,
}

/// A relay's hold on its client, whom it counts for.
pub(crate) struct Attached(Arc<Client>);

impl Attached {
    pub(crate) fn new(client: Arc<Client>) -> Self {
        client.relays().send_modify(|count| *count += 1);
        Self(client)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.0.relays().send_modify(|count| *count -= 1);
    }
}

/// Where output goes until the client is gone; then nowhere, and the client's FIFOs
/// are let go.
struct Outlet {
    client: Option<Attached>,
    leave: watch::Receiver<Leave>,
    to_stderr: bool,
    /// The client was not to be reached; said once.
    failed: bool,
}

impl Outlet {
    fn new(client: Attached, to_stderr: bool) -> Self {
        Self {
            leave: client.0.leave(),
            client: Some(client),
            to_stderr,
            failed: false,
        }
    }

    /// Ends when the client begins to take leave; never if it is gone.
    async fn going(&mut self) {
        if self.client.is_some() {
            let _ = self.leave.wait_for(|leave| *leave != Leave::Here).await;
        } else {
            std::future::pending().await
        }
    }

    async fn deliver(&mut self, data: &[u8]) {
        let Some(client) = self.client.as_ref().map(|client| client.0.clone()) else {
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
            _ = self.leave.wait_for(|leave| *leave == Leave::Gone) => self.client = None,
        }
    }

    /// Delivers what there is, and lets the client go. Past what the runtime knows to be
    /// readable: what was written just now may not have been noticed.
    async fn deliver_rest(&mut self, fd: impl AsFd, buffer: &mut [u8]) {
        while self.client.is_some() {
            // Who writes as fast as this reads must not keep this thread: it has the clock,
            // too, by which the client is gone at last.
            consume_budget().await;
            match rustix::io::read(&fd, &mut *buffer) {
                Ok(count @ 1..) => self.deliver(&buffer[..count]).await,
                Err(rustix::io::Errno::INTR) => {}
                Ok(0) | Err(_) => self.client = None,
            }
        }
    }
}

pub(crate) async fn relay_output(pipe: pipe::Receiver, client: Attached, to_stderr: bool) {
    let mut outlet = Outlet::new(client, to_stderr);
    let mut buffer = vec![0; CHUNK];
    loop {
        tokio::select! {
            ready = pipe.readable() => {
                if ready.is_err() {
                    return;
                }
            }
            () = outlet.going() => {
                outlet.deliver_rest(&pipe, &mut buffer).await;
                continue;
            }
        }
        match pipe.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => outlet.deliver(&buffer[..count]).await,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

pub(crate) async fn relay_terminal(terminal: Arc<Terminal>, client: Attached) {
    let mut outlet = Outlet::new(client, false);
    let mut buffer = vec![0; CHUNK];
    loop {
        tokio::select! {
            // A terminal whose last process is gone reads as EIO.
            read = terminal.read(&mut buffer) => match read {
                Ok(0) | Err(_) => return,
                Ok(count) => outlet.deliver(&buffer[..count]).await,
            },
            () = outlet.going() => outlet.deliver_rest(terminal.master(), &mut buffer).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, sync::mpsc, thread, time::Duration};

    use crab_runtime::reaper::Reaper;

    use super::*;
    use crate::stdio::{Owner, StdioPaths};

    #[test]
    fn output_that_never_pauses_ends_with_its_client() {
        let owner = Owner {
            id: "x".into(),
            namespace: "x".into(),
            uid: 0,
            gid: 0,
            // Asked for nothing: this client has no log driver.
            reaper: Reaper::start().unwrap(),
        };
        let (done, end) = mpsc::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let client = Client::new(StdioPaths::default(), owner);
                client.connect().await.unwrap();
                let mut outlet = Outlet::new(Attached::new(client.clone()), false);
                let endless = File::open("/dev/zero").unwrap();
                let mut buffer = vec![0; CHUNK];
                let rest = outlet.deliver_rest(&endless, &mut buffer);
                tokio::join!(client.take_leave(), rest);
            });
            done.send(()).unwrap();
        });
        end.recv_timeout(Duration::from_secs(60)).unwrap();
    }
}
