// SPDX-License-Identifier: Apache-2.0
//! How crabd lends sealed copies of programs.
//!
//! ```text
//! shim  --the program's path, end-->             crabd
//!       <--its identity, and a descriptor, end--
//!       <--or why there is none, as text, end--
//! ```
//! One question per connection, on a socket of its own: ttrpc carries no descriptors. What
//! is lent is a memfd that nobody can write to any more, with what was in the file that
//! the identity names.

use std::{
    ffi::OsString,
    fs::{self, File, Metadata},
    io::{self, IoSlice, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    net::Shutdown,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            ffi::{OsStrExt, OsStringExt},
            fs::MetadataExt,
            net::UnixStream,
        },
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg,
    socket_with,
};

/// The longest path that is asked for: the kernel's own limit.
const MAX_PATH: u64 = 4096;
/// The longest reason that is read.
const MAX_ANSWER: usize = 1024;
/// An identity, as it is sent.
const IDENTITY: usize = 40;

/// By which a file is known to be the same, with the same content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    modified_ns: u64,
    changed_ns: u64,
}

impl Identity {
    /// Of what is at the path now.
    ///
    /// # Errors
    /// When nothing is there.
    pub fn of(path: &Path) -> io::Result<Self> {
        Ok(Self::from(&fs::metadata(path)?))
    }

    fn numbers(&self) -> [u64; 5] {
        [
            self.device,
            self.inode,
            self.size,
            self.modified_ns,
            self.changed_ns,
        ]
    }

    fn to_bytes(self) -> [u8; IDENTITY] {
        let mut bytes = [0; IDENTITY];
        for (place, number) in bytes.chunks_exact_mut(8).zip(self.numbers()) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (numbers, []) = bytes.as_chunks::<8>() else {
            return None;
        };
        let numbers: Vec<u64> = numbers.iter().map(|n| u64::from_le_bytes(*n)).collect();
        let [device, inode, size, modified_ns, changed_ns] = numbers[..] else {
            return None;
        };
        Some(Self {
            device,
            inode,
            size,
            modified_ns,
            changed_ns,
        })
    }
}

impl From<&Metadata> for Identity {
    fn from(file: &Metadata) -> Self {
        // Only ever compared: that it wraps around does not matter.
        let ns = |seconds: i64, ns: i64| (seconds as u64).wrapping_mul(1_000_000_000) ^ ns as u64;
        Self {
            device: file.dev(),
            inode: file.ino(),
            size: file.size(),
            modified_ns: ns(file.mtime(), file.mtime_nsec()),
            changed_ns: ns(file.ctime(), file.ctime_nsec()),
        }
    }
}

/// Asks whoever listens on `socket` for a copy of the program.
///
/// # Errors
/// When nobody does, when there is no answer within `limit`, or with the reason why there
/// is no copy.
pub fn borrow(socket: &Path, program: &Path, limit: Duration) -> io::Result<(Identity, OwnedFd)> {
    let mut stream = connect(socket)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    stream.write_all(program.as_os_str().as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    let (text, file) = receive(&stream)?;
    let Some(file) = file else {
        return Err(match text.is_empty() {
            true => io::Error::new(io::ErrorKind::UnexpectedEof, "it went without an answer"),
            false => io::Error::other(String::from_utf8_lossy(&text).into_owned()),
        });
    };
    let identity = Identity::from_bytes(&text)
        .ok_or_else(|| io::Error::other("the answer is of another version of crabd"))?;
    Ok((identity, file))
}

/// Connects, or is told at once that too many wait for a crabd that does not answer.
fn connect(socket: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&fd, &SocketAddrUnix::new(socket)?)?;
    let stream = UnixStream::from(fd);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

fn receive(stream: &UnixStream) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let mut text = vec![0; MAX_ANSWER];
    let mut filled = 0;
    let mut file = None;
    while filled < text.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut text[filled..])];
        let got = recvmsg(stream, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                file = files.last().or(file);
            }
        }
        if got.bytes == 0 {
            break;
        }
        filled += got.bytes;
    }
    text.truncate(filled);
    Ok((text, file))
}

/// Reads which program is asked for.
///
/// # Errors
/// When the question does not come in time, or makes no sense.
pub fn question(stream: &UnixStream, limit: Duration) -> io::Result<PathBuf> {
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    let mut path = Vec::new();
    stream.take(MAX_PATH + 1).read_to_end(&mut path)?;
    let path = PathBuf::from(OsString::from_vec(path));
    if !path.is_absolute() || path.as_os_str().len() as u64 > MAX_PATH {
        return Err(io::Error::other("not an absolute path"));
    }
    Ok(path)
}

/// Answers with a copy, or with the reason why there is none.
///
/// # Errors
/// When whoever asked is gone.
pub fn answer(stream: &UnixStream, answer: Result<(Identity, &File), String>) -> io::Result<()> {
    let (identity, file) = match answer {
        Ok(lent) => lent,
        Err(reason) => {
            let reason = reason.as_bytes();
            return (&mut &*stream).write_all(&reason[..reason.len().min(MAX_ANSWER)]);
        }
    };
    let files = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    let bytes = identity.to_bytes();
    let sent = sendmsg(
        stream,
        &[IoSlice::new(&bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    if sent < bytes.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::unix::net::UnixListener, thread};

    const LIMIT: Duration = Duration::from_secs(20);

    fn serve(listener: UnixListener, with: impl Fn(&Path, &UnixStream) + Send + 'static) {
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                let path = question(&stream, LIMIT).unwrap();
                with(&path, &stream);
            }
        });
    }

    #[test]
    fn a_program_is_lent_or_the_reason_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        serve(listener, |path, stream| {
            let _ = match File::open(path) {
                Ok(file) => {
                    let identity = Identity::from(&file.metadata().unwrap());
                    answer(stream, Ok((identity, &file)))
                }
                Err(error) => answer(stream, Err(format!("open it: {error}"))),
            };
        });
        let program = dir.path().join("program");
        fs::write(&program, "content").unwrap();
        let (identity, file) = borrow(&socket, &program, LIMIT).unwrap();
        assert_eq!(identity, Identity::of(&program).unwrap());
        let mut content = String::new();
        File::from(file).read_to_string(&mut content).unwrap();
        assert_eq!(content, "content");
        let error = borrow(&socket, &dir.path().join("none"), LIMIT).unwrap_err();
        assert!(error.to_string().starts_with("open it: "), "{error}");
    }

    #[test]
    fn whoever_is_silent_is_waited_for_no_longer_than_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let _listener = UnixListener::bind(&socket).unwrap();
        let error = borrow(&socket, Path::new("/x"), Duration::from_millis(10)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn nobody_queues_for_one_that_does_not_answer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let kind = SocketType::STREAM;
        let silent = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&silent, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&silent, 1).unwrap();
        let (done, end) = std::sync::mpsc::channel();
        thread::spawn(move || {
            for _ in 0..4 {
                let _ = borrow(&path, Path::new("/x"), Duration::from_millis(10));
            }
            done.send(()).unwrap();
        });
        end.recv_timeout(LIMIT).unwrap();
    }

    #[test]
    fn a_file_that_was_written_to_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        fs::write(&path, "one").unwrap();
        let before = Identity::of(&path).unwrap();
        assert_eq!(before, Identity::of(&path).unwrap());
        fs::write(&path, "three").unwrap();
        assert_ne!(before, Identity::of(&path).unwrap());
        let bytes = before.to_bytes();
        assert_eq!(Identity::from_bytes(&bytes), Some(before));
        assert_eq!(Identity::from_bytes(&bytes[1..]), None);
    }
}
