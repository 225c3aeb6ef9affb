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
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use tokio::{net::unix::pipe, task::spawn_blocking};

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
    /// A FIFO, or a log driver's pipe.
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
                let fifo = pipe::OpenOptions::new()
                    .read_write(true)
                    .open_sender(path)
                    .with_context(|| format!("open the FIFO {}", path.display()))?;
                return Ok(Self::Pipe(fifo));
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
            Self::Pipe(pipe) => write_pipe(pipe, data).await,
        }
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

    #[test]
    fn a_fifo_by_any_name_is_opened_without_a_reader() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let uri = format!("file://{}", path.display());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let opened = runtime.block_on(async {
            let target = Target::parse(&uri).unwrap();
            let limit = std::time::Duration::from_secs(20);
            tokio::time::timeout(limit, Sink::open(&target)).await
        });
        // A thread that waits for a reader is not waited for.
        runtime.shutdown_background();
        assert!(matches!(opened, Ok(Ok(Sink::Pipe(_)))));
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
