// SPDX-License-Identifier: Apache-2.0
//! Where a process's output goes: what the client's URIs mean, and the open targets.
//!
//! | URI | target |
//! | --- | --- |
//! | none | nowhere |
//! | a path, `fifo://<path>` | a FIFO, or a file that is there |
//! | `file://<path>` | a file, appended to, made with its directories; or a FIFO that is there |
//! | `binary://<program>?<key>=<value>` | a log driver, for stdout and stderr |

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Write},
    os::unix::{
        ffi::OsStringExt,
        fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::{net::unix::pipe, task::spawn_blocking, time::sleep};

use crate::log_driver::DriverCommand;

/// What a URI of stdio asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    Nowhere,
    Path(PathBuf),
    File(PathBuf),
    Driver(DriverCommand),
}

impl Target {
    pub(crate) fn parse(uri: &str) -> Result<Self> {
        if uri.is_empty() {
            return Ok(Self::Nowhere);
        }
        let Some((scheme, rest)) = uri.split_once("://") else {
            return Ok(Self::Path(uri.into()));
        };
        // The host, if any, means nothing here, as in the Go shim.
        let rest = rest.find('/').map_or("", |at| &rest[at..]);
        let rest = rest.split_once('#').map_or(rest, |(before, _)| before);
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let path = unescape(path, false)
            .filter(|path| !path.is_empty())
            .map(PathBuf::from)
            .with_context(|| format!("{uri} names no path"))?;
        match scheme {
            "fifo" => Ok(Self::Path(path)),
            "file" => Ok(Self::File(path)),
            "binary" | "binary-v2" => Ok(Self::Driver(DriverCommand {
                program: path,
                args: arguments(query),
                must_say_ready: scheme == "binary-v2",
            })),
            _ => bail!(
                "stdio URI {uri}: {scheme}:// is unknown; use a path, fifo://, file:// or binary://"
            ),
        }
    }
}

/// A driver's arguments: each key, followed by its first value.
fn arguments(query: &str) -> Vec<OsString> {
    let mut known: Vec<OsString> = Vec::new();
    let mut all = Vec::new();
    for pair in query
        .split('&')
        .filter(|p| !p.is_empty() && !p.contains(';'))
    {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (Some(key), Some(value)) = (unescape(key, true), unescape(value, true)) else {
            continue;
        };
        if !known.contains(&key) {
            known.push(key.clone());
            all.extend([key, value]);
        }
    }
    all
}

/// Undoes URI escapes; none where one is broken.
fn unescape(text: &str, plus_is_space: bool) -> Option<OsString> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                (digit()? * 16 + digit()?) as u8
            }
            b'+' if plus_is_space => b' ',
            byte => byte,
        });
    }
    Some(OsString::from_vec(out))
}

/// Where output goes.
pub(crate) enum Sink {
    Fifo(Fifo),
    /// A log driver's.
    Pipe(pipe::Sender),
    File(Arc<File>),
    /// The client wants none.
    Nowhere,
}

impl Sink {
    /// Opens a target; that of a driver is opened with the driver.
    pub(crate) async fn open(target: &Target) -> Result<Self> {
        let file = match target {
            Target::Nowhere => return Ok(Self::Nowhere),
            Target::Driver(driver) => bail!(
                "stderr alone cannot go to the log driver {}: name it for stdout",
                driver.program.display()
            ),
            // Else to open it would wait for a reader.
            Target::Path(path) | Target::File(path) if is_fifo(path) => {
                let fifo = Fifo::open(path);
                return Ok(Self::Fifo(
                    fifo.with_context(|| format!("open the FIFO {}", path.display()))?,
                ));
            }
            Target::Path(path) => open_file(path.clone(), false).await?,
            Target::File(path) => open_file(path.clone(), true).await?,
        };
        Ok(Self::File(Arc::new(file)))
    }

    pub(crate) async fn write(&self, data: &[u8]) -> io::Result<()> {
        match self {
            Self::Nowhere => Ok(()),
            Self::File(file) => {
                // A slow disk must hold up this output and nothing else.
                let (file, data) = (file.clone(), data.to_vec());
                let written = spawn_blocking(move || (&*file).write_all(&data));
                written.await.unwrap_or_else(|e| Err(io::Error::other(e)))
            }
            Self::Fifo(fifo) => write_pipe(&fifo.writer, data).await,
            Self::Pipe(pipe) => write_pipe(pipe, data).await,
        }
    }

    /// Waits until there is somebody who will read what was written, if that was not so from
    /// the beginning.
    pub(crate) async fn wait_for_reader(&self) {
        if let Self::Fifo(fifo) = self {
            fifo.wait_for_reader().await;
        }
    }
}

/// A client's FIFO.
///
/// dockerd and containerd's clients open their end while the process starts, on a thread of
/// its own: on a busy host it may have ended before. What is in a FIFO that everybody has
/// closed is lost, and who opens it then waits for ever. The Go shim does not begin before
/// there is a reader; here a process does not wait, and its FIFOs are held until there is
/// one.
pub(crate) struct Fifo {
    writer: pipe::Sender,
    /// Both ends, so that a reader that goes away breaks nothing.
    held: Mutex<Option<File>>,
    had_reader: bool,
}

/// How often it is looked whether a reader has come.
const READER_PAUSE: Duration = Duration::from_millis(5);

impl Fifo {
    fn open(path: &Path) -> io::Result<Self> {
        let writer = || pipe::OpenOptions::new().open_sender(path);
        // Without a reader it is refused (fifo(7)); with one it must not be closed again, which
        // would be the end for that reader.
        let early = writer();
        let had_reader = early.is_ok();
        let held = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)?;
        Ok(Self {
            writer: early.or_else(|_| writer())?,
            held: Mutex::new(Some(held)),
            had_reader,
        })
    }

    async fn wait_for_reader(&self) {
        if self.had_reader {
            return;
        }
        // What was written stays as long as the writer does.
        self.held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        while !self.has_reader() {
            sleep(READER_PAUSE).await;
        }
    }

    fn has_reader(&self) -> bool {
        let mut fds = [PollFd::new(&self.writer, PollFlags::OUT)];
        // A writer's error is that nobody reads (pipe_poll of the kernel).
        let polled = poll(&mut fds, Some(&Timespec::default()));
        polled.is_ok() && !fds[0].revents().contains(PollFlags::ERR)
    }
}

/// Writes all of it.
pub(crate) async fn write_pipe(pipe: &pipe::Sender, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        pipe.writable().await?;
        match pipe.try_write(data) {
            Ok(count) => data = &data[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_fifo(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.file_type().is_fifo())
}

/// Opens a file for appending; with `create`, it and its directories are made.
async fn open_file(path: PathBuf, create: bool) -> Result<File> {
    let open = move || {
        if create && let Some(dir) = path.parent() {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(dir)
                .with_context(|| format!("make {}", dir.display()))?;
        }
        File::options()
            .append(true)
            .create(create)
            .mode(0o644)
            .open(&path)
            .with_context(|| format!("open {}", path.display()))
    };
    // It may be anything, be it a file of a dead server.
    spawn_blocking(open).await?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver(uri: &str) -> (String, Vec<String>) {
        let Target::Driver(driver) = Target::parse(uri).unwrap() else {
            panic!("{uri} is no driver");
        };
        let args = driver.args.iter();
        (
            driver.program.display().to_string(),
            args.map(|arg| arg.to_str().unwrap().to_owned()).collect(),
        )
    }

    #[test]
    fn a_path_and_a_uri_of_one_are_the_same() {
        let path = Target::Path("/run/fifo/x-stdout".into());
        assert_eq!(Target::parse("/run/fifo/x-stdout").unwrap(), path);
        assert_eq!(Target::parse("fifo:///run/fifo/x-stdout").unwrap(), path);
        assert_eq!(Target::parse("").unwrap(), Target::Nowhere);
        let odd = Target::Path("/run/a%20b?c#d".into());
        assert_eq!(Target::parse("/run/a%20b?c#d").unwrap(), odd);
    }

    #[test]
    fn a_file_may_have_escapes_in_its_name() {
        let file = |path: &str| Target::File(path.into());
        assert_eq!(
            Target::parse("file:///var/log/x").unwrap(),
            file("/var/log/x")
        );
        assert_eq!(Target::parse("file:///a%20b+c").unwrap(), file("/a b+c"));
        assert_eq!(Target::parse("file://host/x").unwrap(), file("/x"));
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    }

    fn fifo(dir: &Path) -> PathBuf {
        let path = dir.join("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        path
    }

    #[test]
    fn a_reader_that_comes_only_at_the_end_gets_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = fifo(dir.path());
        let read = runtime().block_on(async {
            let sink = Sink::open(&Target::Path(path.clone())).await.unwrap();
            sink.write(b"all").await.unwrap();
            let reader = std::thread::spawn(move || {
                // Later than all that was there to be done.
                std::thread::sleep(Duration::from_millis(50));
                std::fs::read(path).unwrap()
            });
            sink.wait_for_reader().await;
            drop(sink);
            reader.join().unwrap()
        });
        assert_eq!(read, b"all");
    }

    #[test]
    fn a_reader_that_was_there_before_sees_no_end_but_the_last() {
        let dir = tempfile::tempdir().unwrap();
        let path = fifo(dir.path());
        let runtime = runtime();
        // An end in between lasts for some microseconds.
        for _ in 0..300 {
            let from = path.clone();
            let reader = std::thread::spawn(move || std::fs::read(from).unwrap());
            std::thread::sleep(Duration::from_millis(1));
            runtime.block_on(async {
                let sink = Sink::open(&Target::Path(path.clone())).await.unwrap();
                std::thread::sleep(Duration::from_millis(1));
                sink.write(b"all").await.unwrap();
                sink.wait_for_reader().await;
            });
            assert_eq!(reader.join().unwrap(), b"all");
        }
    }

    #[test]
    fn a_fifo_by_any_name_is_opened_without_a_reader() {
        let dir = tempfile::tempdir().unwrap();
        let path = fifo(dir.path());
        let uri = format!("file://{}", path.display());
        let runtime = runtime();
        let opened = runtime.block_on(async {
            let target = Target::parse(&uri).unwrap();
            let limit = std::time::Duration::from_secs(20);
            tokio::time::timeout(limit, Sink::open(&target)).await
        });
        // A thread that waits for a reader is not waited for.
        runtime.shutdown_background();
        assert!(matches!(opened, Ok(Ok(Sink::Fifo(_)))));
    }

    #[test]
    fn a_driver_gets_its_query_as_arguments() {
        assert_eq!(
            driver(
                "binary:///usr/bin/nerdctl?_INTERNAL=/var/lib/n/1&id=a+b%2Fc&flag&id=again&%zz=1"
            ),
            (
                "/usr/bin/nerdctl".into(),
                ["_INTERNAL", "/var/lib/n/1", "id", "a b/c", "flag", ""]
                    .map(String::from)
                    .to_vec()
            )
        );
        assert_eq!(driver("binary:///bin/log"), ("/bin/log".into(), vec![]));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for uri in [
            "tcp://1.2.3.4:5",
            "npipe:///x",
            "file://",
            "binary://",
            "file:///%f",
        ] {
            assert!(Target::parse(uri).is_err(), "{uri}");
        }
    }
}
