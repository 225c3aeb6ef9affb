// SPDX-License-Identifier: Apache-2.0
//! The command line under which containerd runs a shim.
//!
//! Go's flag syntax (`-id x`, `--id x`, `-id=x`), then one action. The bundle
//! is the working directory, except for `delete`, which names it.

use std::path::PathBuf;

use thiserror::Error;

/// What is asked of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Print the address of a shim, started if need be.
    Start,
    /// Clean up after a shim that is gone.
    Delete,
    /// Be the shim.
    Serve,
    /// Print the version.
    Version,
    /// Print what this runtime can do, as protobuf.
    Info,
}

/// The flags, as containerd passes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Args {
    pub(crate) action: Action,
    pub(crate) namespace: String,
    pub(crate) id: String,
    /// containerd's own gRPC socket.
    pub(crate) address: String,
    pub(crate) bundle: Option<PathBuf>,
    pub(crate) debug: bool,
}

/// What is wrong with a command line.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum ArgsError {
    #[error("unknown flag -{0}")]
    UnknownFlag(String),
    #[error("flag -{0} needs a value")]
    NoValue(String),
    #[error("unknown action {0:?}; containerd runs a shim with start or delete")]
    UnknownAction(String),
    #[error("-{0} is missing; a shim is run by containerd, not by hand")]
    Missing(&'static str),
    #[error("{0:?} is no identifier for a {1}")]
    Identifier(String, &'static str),
}

/// Reads a command line, without the program's name.
pub(crate) fn parse(args: impl IntoIterator<Item = String>) -> Result<Args, ArgsError> {
    let mut parsed = Args {
        action: Action::Serve,
        namespace: String::new(),
        id: String::new(),
        address: String::new(),
        bundle: None,
        debug: false,
    };
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let Some(flag) = arg.strip_prefix('-') else {
            parsed.action = match arg.as_str() {
                "start" => Action::Start,
                "delete" => Action::Delete,
                _ => return Err(ArgsError::UnknownAction(arg)),
            };
            break;
        };
        let flag = flag.strip_prefix('-').unwrap_or(flag);
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value.to_string())),
            None => (flag, None),
        };
        match name {
            "debug" => parsed.debug = value.is_none_or(|v| v != "false"),
            "v" | "version" => parsed.action = Action::Version,
            "info" => parsed.action = Action::Info,
            "namespace" | "id" | "address" | "bundle" | "publish-binary" | "socket" => {
                let value = value
                    .or_else(|| args.next())
                    .ok_or_else(|| ArgsError::NoValue(name.into()))?;
                match name {
                    "namespace" => parsed.namespace = value,
                    "id" => parsed.id = value,
                    "address" => parsed.address = value,
                    "bundle" if !value.is_empty() => parsed.bundle = Some(value.into()),
                    // Events go over ttrpc, and the socket is inherited.
                    _ => {}
                }
            }
            _ => return Err(ArgsError::UnknownFlag(name.into())),
        }
    }
    if !matches!(parsed.action, Action::Version | Action::Info) {
        identifier(&parsed.namespace, "namespace")?;
        identifier(&parsed.id, "id")?;
    }
    Ok(parsed)
}

/// These two become parts of paths.
fn identifier(value: &str, what: &'static str) -> Result<(), ArgsError> {
    if value.is_empty() {
        return Err(ArgsError::Missing(what));
    }
    let fine = value
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        && !value.starts_with('.');
    if fine {
        Ok(())
    } else {
        Err(ArgsError::Identifier(value.into(), what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<Args, ArgsError> {
        parse(line.split_whitespace().map(String::from))
    }

    #[test]
    fn containerd_1_7_starts_a_shim_like_this() {
        let args = of(
            "-namespace default -address /run/containerd/containerd.sock \
             -publish-binary /usr/bin/containerd -id test start",
        )
        .unwrap();
        assert_eq!(args.action, Action::Start);
        assert_eq!(
            (args.namespace.as_str(), args.id.as_str()),
            ("default", "test")
        );
        assert_eq!(args.address, "/run/containerd/containerd.sock");
    }

    #[test]
    fn containerd_deletes_with_the_bundle_named() {
        let args = of("-namespace moby -id a1 -bundle /run/x -debug delete").unwrap();
        assert_eq!(args.action, Action::Delete);
        assert_eq!(args.bundle.as_deref(), Some("/run/x".as_ref()));
        assert!(args.debug);
    }

    #[test]
    fn both_dashes_and_equal_signs_are_taken() {
        let args = of("--namespace=n --id=x --debug=false").unwrap();
        assert_eq!(args.action, Action::Serve);
        assert!(!args.debug);
        assert_eq!(of("-v").unwrap().action, Action::Version);
        assert_eq!(of("-info").unwrap().action, Action::Info);
    }

    #[test]
    fn what_would_leave_its_directory_is_no_identifier() {
        for line in [
            "-namespace .. -id x",
            "-namespace n -id a/b",
            "-namespace n -id .x",
        ] {
            assert!(matches!(of(line), Err(ArgsError::Identifier(..))), "{line}");
        }
        assert_eq!(of("-id x start"), Err(ArgsError::Missing("namespace")));
        assert_eq!(
            of("-namespace n -id x stop"),
            Err(ArgsError::UnknownAction("stop".into()))
        );
        assert_eq!(
            of("-frobnicate"),
            Err(ArgsError::UnknownFlag("frobnicate".into()))
        );
        assert_eq!(of("-id"), Err(ArgsError::NoValue("id".into())));
    }
}
