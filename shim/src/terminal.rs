// SPDX-License-Identifier: Apache-2.0
//! Terminals: the master side, and how the runtime hands it over.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use rustix::fs::OFlags;
use tokio::io::{Interest, unix::AsyncFd};

/// The master of a process's terminal.
pub(crate) struct Terminal {
    master: AsyncFd<OwnedFd>,
}

impl Terminal {
    pub(crate) fn new(master: OwnedFd) -> Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&master)?;
        rustix::fs::fcntl_setfl(&master, flags | OFlags::NONBLOCK)?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        // SAFETY: the descriptor is owned, stays the same one and stays open until
        // the registration is dropped together with it.
        let master = unsafe { AsyncFd::register_with_interest(master, interest) }?;
        Ok(Self { master })
    }

    pub(crate) async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut ready = self.master.readable().await?;
            if let Ok(done) =
                ready.try_io(|fd| rustix::io::read(fd.as_fd(), &mut *buffer).map_err(Into::into))
            {
                return done;
            }
        }
    }

    pub(crate) async fn write(&self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let mut ready = self.master.writable().await?;
            if let Ok(done) =
                ready.try_io(|fd| rustix::io::write(fd.as_fd(), data).map_err(Into::into))
            {
                data = &data[done?..];
            }
        }
        Ok(())
    }

    /// The master, which does not block.
    pub(crate) fn master(&self) -> &OwnedFd {
        self.master.get_ref()
    }

    /// Sets the window's size, in characters.
    pub(crate) fn resize(&self, columns: u16, rows: u16) -> io::Result<()> {
        rustix::termios::tcsetwinsize(
            self.master.get_ref(),
            rustix::termios::Winsize {
                ws_col: columns,
                ws_row: rows,
                ws_xpixel: 0,
                ws_ypixel: 0,
            },
        )
        .map_err(Into::into)
    }
}

/// The socket over which the runtime hands a terminal's master over
/// (`--console-socket`).
pub(crate) struct ConsoleSocket {
    listener: std::os::unix::net::UnixListener,
    path: PathBuf,
}

impl ConsoleSocket {
    pub(crate) fn listen(path: &Path) -> Result<Self> {
        let _ = std::fs::remove_file(path);
        let listener = std::os::unix::net::UnixListener::bind(path)
            .with_context(|| format!("listen on {}", path.display()))?;
        Ok(Self {
            listener,
            path: path.to_path_buf(),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The master that the runtime has sent; the runtime has ended already, so
    /// nothing is waited for. One that had to run twice has called twice, and the first
    /// time hung up.
    pub(crate) fn receive(self) -> Result<OwnedFd> {
        self.listener.set_nonblocking(true)?;
        loop {
            let (stream, _) = self
                .listener
                .accept()
                .context("the runtime sent no terminal")?;
            if let Some(master) = descriptor_from(&stream)? {
                return Ok(master);
            }
        }
    }
}

/// The descriptor that a message holds, if there is a message already and it holds one.
fn descriptor_from(stream: &std::os::unix::net::UnixStream) -> Result<Option<OwnedFd>> {
    use rustix::{
        io::Errno,
        net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg},
    };
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut name = [0; 256];
    let received = recvmsg(
        stream,
        &mut [io::IoSliceMut::new(&mut name)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
    );
    match received {
        Err(Errno::AGAIN | Errno::CONNRESET) => return Ok(None),
        received => received.context("receive the terminal")?,
    };
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    }))
}

impl Drop for ConsoleSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::{io::IoSlice, os::fd::AsFd, os::unix::net::UnixStream};

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    #[test]
    fn a_call_that_hung_up_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("console");
        let socket = ConsoleSocket::listen(&path).unwrap();
        drop(UnixStream::connect(&path).unwrap());
        let _silent = UnixStream::connect(&path).unwrap();
        let stream = UnixStream::connect(&path).unwrap();
        let (_, sent) = rustix::pipe::pipe().unwrap();
        let fds = [sent.as_fd()];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(
            &stream,
            &[IoSlice::new(b"/dev/pts/0")],
            &mut control,
            SendFlags::empty(),
        )
        .unwrap();
        drop(stream);
        let got = socket.receive().unwrap();
        let inode = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_ino;
        assert_eq!(inode(&got), inode(&sent));

        let socket = ConsoleSocket::listen(&path).unwrap();
        drop(UnixStream::connect(&path).unwrap());
        assert!(socket.receive().is_err(), "nobody sends one");
    }
}
