// SPDX-License-Identifier: Apache-2.0

//! Turns as OpenTelemetry's spans: lines as its file exporter writes them, each a `TracesData` of one
//! trace in the OTLP's JSON encoding, for a collector's `otlpjsonfile` receiver.
//!
//! ```text
//! turn                began ............ ended, or stored
//!   run               began .... ended
//!   settle                           ..   until it was looked at
//!   decide                             ...
//!     wait                              .
//!   capture                              .....
//!     frozen                              ...
//!   publish-wait, publish                     ......
//! ```
//! Ids are made of the sandbox's name, the turn's number and when it began: the same record gives the
//! same ids, however often and wherever it is read.
//!
//! Of the encoding: ids are hexadecimal, enumerations are numbers, and numbers of 64 bits are texts.

use crab_store::{Digest, JournalRecord, RollbackRecord, SandboxId, Span, TurnRecord};
use serde::Serialize;

/// `SPAN_KIND_INTERNAL`
const INTERNAL: u8 = 1;
/// `STATUS_CODE_ERROR`
const ERROR: u8 = 2;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TracesData<'a> {
    resource_spans: [ResourceSpans<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceSpans<'a> {
    resource: Resource,
    scope_spans: [ScopeSpans<'a>; 1],
}

#[derive(Serialize)]
struct Resource {
    attributes: Vec<KeyValue>,
}

#[derive(Serialize)]
struct ScopeSpans<'a> {
    scope: Scope,
    spans: &'a [OtlpSpan],
}

#[derive(Serialize)]
struct Scope {
    name: &'static str,
    version: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OtlpSpan {
    trace_id: String,
    span_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_span_id: Option<String>,
    name: &'static str,
    kind: u8,
    start_time_unix_nano: String,
    end_time_unix_nano: String,
    attributes: Vec<KeyValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
}

#[derive(Serialize)]
struct Status {
    code: u8,
    message: String,
}

#[derive(Serialize)]
struct KeyValue {
    key: String,
    value: AnyValue,
}

#[derive(Serialize)]
enum AnyValue {
    #[serde(rename = "stringValue")]
    Text(String),
    #[serde(rename = "intValue")]
    Number(String),
    #[serde(rename = "boolValue")]
    Flag(bool),
}

fn text(key: impl Into<String>, value: impl Into<String>) -> KeyValue {
    let (key, value) = (key.into(), AnyValue::Text(value.into()));
    KeyValue { key, value }
}

/// The format has signed numbers.
fn number(key: &str, value: impl TryInto<i64>) -> KeyValue {
    let value = value.try_into().unwrap_or(i64::MAX);
    let (key, value) = (key.to_owned(), AnyValue::Number(value.to_string()));
    KeyValue { key, value }
}

fn flag(key: &str, value: bool) -> KeyValue {
    let (key, value) = (key.to_owned(), AnyValue::Flag(value));
    KeyValue { key, value }
}

/// The ids of one trace.
struct Ids(String);

impl Ids {
    fn new(sandbox: &SandboxId, what: &str, began_ms: u64) -> Self {
        // No name of a sandbox has a line's end.
        Self(format!("crab\n{sandbox}\n{what}\n{began_ms}\n"))
    }

    fn hex(&self, of: &str, digits: usize) -> String {
        let mut hex = Digest::of(format!("{}{of}", self.0).as_bytes()).to_string();
        hex.truncate(digits);
        hex
    }

    fn trace(&self) -> String {
        self.hex("trace", 32)
    }

    fn span(&self, name: &str) -> String {
        self.hex(&format!("span {name}"), 16)
    }
}

fn span(
    ids: &Ids,
    name: &'static str,
    parent: Option<&str>,
    at: Span,
    attributes: Vec<KeyValue>,
) -> OtlpSpan {
    let nanos = |us: u64| (u128::from(us) * 1000).to_string();
    OtlpSpan {
        trace_id: ids.trace(),
        span_id: ids.span(name),
        parent_span_id: parent.map(|parent| ids.span(parent)),
        name,
        kind: INTERNAL,
        start_time_unix_nano: nanos(at.at_us),
        end_time_unix_nano: nanos(at.end_us()),
        attributes,
        status: None,
    }
}

/// What a record is as a line; nothing if it took no time.
pub(crate) fn line(sandbox: &SandboxId, record: &JournalRecord) -> Option<String> {
    let spans = match record {
        JournalRecord::Turn(record) => turn(sandbox, record),
        JournalRecord::Rollback(back) => vec![rollback(sandbox, "rollback", back)],
        JournalRecord::Restore(back) => vec![rollback(sandbox, "restore", back)],
        _ => return None,
    };
    let data = TracesData {
        resource_spans: [ResourceSpans {
            resource: Resource {
                attributes: vec![
                    text("service.name", "crab"),
                    text("container.id", sandbox.id()),
                    text("crab.sandbox", sandbox.to_string()),
                ],
            },
            scope_spans: [ScopeSpans {
                scope: Scope {
                    name: "crab",
                    version: env!("CARGO_PKG_VERSION"),
                },
                spans: &spans,
            }],
        }],
    };
    // Strings and lists of them cannot fail.
    let mut line = serde_json::to_string(&data).ok()?;
    line.push('\n');
    Some(line)
}

fn us(ms: u64) -> u64 {
    ms.saturating_mul(1000)
}

fn turn(sandbox: &SandboxId, record: &TurnRecord) -> Vec<OtlpSpan> {
    let ids = Ids::new(sandbox, &format!("turn {}", record.turn), record.began_ms);
    let run = Span {
        at_us: us(record.began_ms),
        took_us: us(record.ended_ms).saturating_sub(us(record.began_ms)),
    };
    let parts: Vec<_> = record.spans.named().collect();
    let ends = parts.iter().map(|(_, _, part)| part.end_us());
    let end = ends.fold(run.end_us(), u64::max);
    let whole = Span {
        at_us: run.at_us,
        took_us: end - run.at_us,
    };
    let cost = &record.cost;
    let mut attributes = vec![
        number("crab.turn", record.turn.0),
        text("crab.trigger", record.trigger.as_str()),
        text("crab.class", record.class.as_str()),
        text("crab.reason", record.reason.as_str()),
        text("process.command_line", record.command.as_str()),
        number("crab.files_changed", record.files_changed),
        number("crab.gate_us", cost.gate_us),
        number("crab.bytes_raw", cost.bytes_raw),
        number("crab.bytes_stored", cost.bytes_stored),
    ];
    attributes.extend(record.exit.map(|exit| number("process.exit.code", exit)));
    let checkpoint = record.checkpoint;
    attributes.extend(checkpoint.map(|turn| number("crab.checkpoint", turn.0)));
    let degraded = record.degraded.as_deref();
    attributes.extend(degraded.map(|why| text("crab.degraded", why)));
    let meta = record.meta.iter();
    attributes.extend(meta.map(|(name, value)| text(format!("crab.meta.{name}"), value.as_str())));
    let mut root = span(&ids, "turn", None, whole, attributes);
    if checkpoint.is_none() {
        root.status = Some(Status {
            code: ERROR,
            message: record.reason.clone(),
        });
    }
    let mut spans = vec![root, span(&ids, "run", Some("turn"), run, Vec::new())];
    if cost.boundary_us > 0 {
        let settle = Span {
            at_us: run.end_us(),
            took_us: cost.boundary_us,
        };
        spans.push(span(&ids, "settle", Some("turn"), settle, Vec::new()));
    }
    for (name, within, part) in parts {
        let parent = within.unwrap_or("turn");
        spans.push(span(&ids, name, Some(parent), part, Vec::new()));
    }
    spans
}

fn rollback(sandbox: &SandboxId, name: &'static str, back: &RollbackRecord) -> OtlpSpan {
    let ids = Ids::new(sandbox, name, back.at_ms);
    let took = Span {
        at_us: us(back.at_ms).saturating_sub(back.took_us),
        took_us: back.took_us,
    };
    let attributes = vec![
        number("crab.from_turn", back.from.0),
        number("crab.to_turn", back.asked.0),
        number("crab.checkpoint", back.checkpoint.0),
        flag("crab.warm", back.warm),
    ];
    span(&ids, name, None, took, attributes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crab_store::{CaptureFailed, Class, Cost, Spans, Trigger, TurnId};
    use serde_json::Value;

    fn record() -> TurnRecord {
        let span = |at_us, took_us| Some(Span { at_us, took_us });
        TurnRecord {
            command: "make \"all\"".to_owned(),
            meta: [("tool".to_owned(), "bash".to_owned())].into(),
            began_ms: 1_700_000_000_000,
            ended_ms: 1_700_000_000_250,
            exit: Some(2),
            class: Class::Full,
            reason: "1 path changed".to_owned(),
            checkpoint: Some(TurnId(7)),
            cost: Cost {
                boundary_us: 400,
                gate_us: 5,
                bytes_stored: u64::MAX,
                ..Cost::default()
            },
            spans: Spans {
                decide: span(1_700_000_000_250_400, 9_600),
                wait: span(1_700_000_000_251_000, 8_000),
                capture: span(1_700_000_000_260_000, 60_000),
                frozen: span(1_700_000_000_265_000, 50_000),
                publish_wait: span(1_700_000_000_320_000, 1_000),
                publish: span(1_700_000_000_321_000, 40_000),
            },
            files_changed: 1,
            ..TurnRecord::new(TurnId(7), Trigger::Exec)
        }
    }

    fn id() -> SandboxId {
        SandboxId::new("default", "demo").unwrap()
    }

    fn told(record: TurnRecord) -> String {
        line(&id(), &JournalRecord::Turn(record)).unwrap()
    }

    #[test]
    fn a_turn_is_a_line_as_the_file_exporter_writes_it() {
        let told = told(record());
        let golden = include_str!("otlp.golden.json");
        if std::env::var_os("CRAB_UPDATE_GOLDEN").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/events/otlp.golden.json");
            std::fs::write(path, &told).unwrap();
        }
        let version = concat!("\"version\":\"", env!("CARGO_PKG_VERSION"), "\"");
        let golden = golden.replace("\"version\":\"0.1.0\"", version);
        assert_eq!(told, golden);
        assert_eq!(told.lines().count(), 1);
    }

    #[test]
    fn parts_are_within_what_they_are_a_part_of_and_ids_are_of_the_right_length() {
        let told: Value = serde_json::from_str(&told(record())).unwrap();
        let spans = told["resourceSpans"][0]["scopeSpans"][0]["spans"]
            .as_array()
            .unwrap();
        let of = |id: &Value| spans.iter().find(|span| span["spanId"] == *id).unwrap();
        let nanos = |value: &Value| value.as_str().unwrap().parse::<u64>().unwrap();
        let hex = |value: &Value, len: usize| {
            let text = value.as_str().unwrap();
            text.len() == len && text.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        assert_eq!(spans.len(), 9);
        for span in spans {
            assert!(hex(&span["traceId"], 32) && hex(&span["spanId"], 16));
            assert_eq!(span["traceId"], spans[0]["traceId"]);
            if span["name"] == "turn" {
                assert_eq!(span["parentSpanId"], Value::Null);
                continue;
            }
            let parent = of(&span["parentSpanId"]);
            let within = nanos(&parent["startTimeUnixNano"]) <= nanos(&span["startTimeUnixNano"])
                && nanos(&span["endTimeUnixNano"]) <= nanos(&parent["endTimeUnixNano"]);
            assert!(within, "{span} is not within {parent}");
        }
        let ids: std::collections::BTreeSet<_> =
            spans.iter().map(|span| span["spanId"].as_str()).collect();
        assert_eq!(ids.len(), spans.len());
    }

    #[test]
    fn a_turn_of_an_earlier_version_is_its_run_and_a_failed_one_is_an_error() {
        let mut old = record();
        old.spans = Spans::default();
        old.cost = Cost::default();
        old.checkpoint = None;
        let told: Value = serde_json::from_str(&told(old)).unwrap();
        let spans = &told["resourceSpans"][0]["scopeSpans"][0]["spans"];
        assert_eq!(spans.as_array().unwrap().len(), 2);
        assert_eq!(spans[0]["status"]["code"], 2);
        let failed = JournalRecord::CaptureFailed(CaptureFailed {
            at_ms: 1,
            turn: TurnId(7),
            reason: String::new(),
            kind: Default::default(),
        });
        assert_eq!(line(&id(), &failed), None);
    }
}
