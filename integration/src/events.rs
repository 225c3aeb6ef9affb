// SPDX-License-Identifier: Apache-2.0

//! What containerd publishes, collected from `ctr events`.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{client::unique, command::Tool, sandbox::Sandbox, testbed::poll};

const LIMIT: Duration = Duration::from_secs(10);

/// One event.
#[derive(Clone, Debug)]
pub struct Event {
    /// The namespace it is of.
    pub namespace: String,
    /// `/tasks/exit`, `/tasks/exec-added`, ...
    pub topic: String,
    /// The rest.
    pub payload: Value,
}

impl Event {
    /// Parses a line: `<date> <time> <zone...> <namespace> <topic> <json>`.
    fn parse(line: &str) -> Option<Self> {
        let (head, json) = line.split_at(line.find('{')?);
        let mut words = head.split_whitespace().rev();
        Some(Self {
            topic: words.next()?.to_owned(),
            namespace: words.next()?.to_owned(),
            payload: serde_json::from_str(json).ok()?,
        })
    }

    /// The container that it is about.
    pub fn container(&self) -> Option<&str> {
        self.payload.get("container_id")?.as_str()
    }

    /// Whether it tells the end of a container's init: that of an exec bears the
    /// exec's id.
    pub fn is_exit_of_init(&self, sandbox: &Sandbox) -> bool {
        self.topic == "/tasks/exit"
            && self.namespace == sandbox.client().namespace()
            && self.container() == Some(sandbox.id())
            && self.payload.get("id").and_then(Value::as_str) == Some(sandbox.id())
    }
}

/// A collector. It runs until it is dropped.
#[derive(Debug)]
pub struct Events {
    child: Child,
    seen: Arc<Mutex<Vec<Event>>>,
}

impl Events {
    /// Starts one; when this returns, nothing that happens from then on is missed.
    pub(crate) fn start() -> Result<Self> {
        let mut child = Command::new("ctr")
            .arg("events")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("run ctr events")?;
        let seen = Arc::new(Mutex::new(Vec::new()));
        if let Some(stdout) = child.stdout.take() {
            let seen = seen.clone();
            thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    if let Some(event) = Event::parse(&line) {
                        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                        seen.push(event);
                    }
                }
            });
        }
        let events = Self { child, seen };
        // Only what is published after it has subscribed reaches it.
        let mut markers = Vec::new();
        poll("ctr events has subscribed", LIMIT, || {
            markers.push(mark()?);
            // Any of them will do: one may arrive long after it was published.
            thread::sleep(Duration::from_millis(20));
            let arrived = markers.iter().any(|marker| events.has(marker));
            Ok(arrived.then_some(()))
        })?;
        Ok(events)
    }

    fn has(&self, marker: &str) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter()
            .any(|event| event.payload.to_string().contains(marker))
    }

    /// Everything so far; whatever was published before this call is in it.
    pub fn so_far(&self) -> Result<Vec<Event>> {
        let marker = mark()?;
        poll("ctr events has caught up", LIMIT, || {
            Ok(self.has(&marker).then_some(()))
        })?;
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(seen.clone())
    }

    /// How often the end of this container's init was published so far.
    pub fn exits_of_init(&self, sandbox: &Sandbox) -> Result<usize> {
        let all = self.so_far()?;
        Ok(all
            .iter()
            .filter(|event| event.is_exit_of_init(sandbox))
            .count())
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Publishes an event that can be told from all others.
fn mark() -> Result<String> {
    let marker = unique("mark");
    Tool::new("ctr")
        .args(["namespaces", "label", "default"])
        .args([format!("crab-integration={marker}")])
        .run()?
        .ok()?;
    Ok(marker)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_ctr_events_is_understood() {
        let line = r#"2026-11-29 18:38:40.604 +0000 UTC default /tasks/exit {"container_id":"s1","id":"e1","pid":5}"#;
        let event = Event::parse(line).unwrap();
        assert_eq!(event.topic, "/tasks/exit");
        assert_eq!(event.namespace, "default");
        assert_eq!(event.container(), Some("s1"));
        assert!(Event::parse("").is_none());
    }
}
