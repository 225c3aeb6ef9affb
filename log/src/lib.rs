// SPDX-License-Identifier: Apache-2.0
//! Logs for programs: a JSON object in each line.
//!
//! ```text
//! {"time":"2026-11-29T18:05:48.123456Z","level":"INFO","message":"checkpoint published","sandbox":"default/demo","turn":3}
//! ```
//! What a line tells of is in fields of its own, those of the spans that it was logged in included: the
//! inner ones, and the line's own, go before the outer ones. A field that has one of the first three names
//! has a `_` behind it.
//!
//! Nobody waits for a log: a line that cannot be written at once is lost. It is written by one call, so that one of
//! up to 4,096 bytes is never torn where it goes into a pipe (pipe(7)); of a longer one the end may be lost.
#![forbid(unsafe_code)]

use std::fmt::{self, Debug, Write as _};
use std::io::Write as _;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// What each line has, whatever it tells of.
const OWN: [&str; 3] = ["time", "level", "message"];

/// Writes what happens as JSON, a line each.
#[derive(Debug)]
pub struct JsonLines<W> {
    writer: W,
}

impl<W> JsonLines<W> {
    /// To this writer.
    pub fn new(writer: W) -> Self {
        Self { writer }
    }
}

/// What a span or an event tells.
#[derive(Clone, Default)]
struct Fields {
    message: Option<String>,
    others: Map<String, Value>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        let name = field.name();
        if name == "message" {
            self.message = Some(match value {
                Value::String(text) => text,
                value => value.to_string(),
            });
            return;
        }
        let mut name = name.to_owned();
        if OWN.contains(&name.as_str()) {
            name.push('_');
        }
        self.others.insert(name, value);
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_i128(&mut self, field: &Field, value: i128) {
        self.add(field, value.to_string().into());
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        // Milliseconds are counted so.
        let short = u64::try_from(value).map(Value::from);
        self.add(field, short.unwrap_or_else(|_| value.to_string().into()));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }
}

impl<S, W> Layer<S> for JsonLines<W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().replace(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut all = Fields::default();
        for span in context
            .event_scope(event)
            .into_iter()
            .flat_map(|it| it.from_root())
        {
            if let Some(fields) = span.extensions().get::<Fields>() {
                all.others.extend(fields.others.clone());
            }
        }
        event.record(&mut all);
        let Ok(line) = line(event.metadata().level().as_str(), all) else {
            return;
        };
        // A log that cannot be written has nowhere to say so.
        let _ = self.writer.make_writer().write_all(line.as_bytes());
    }
}

fn line(level: &str, fields: Fields) -> Result<String, fmt::Error> {
    let mut time = String::new();
    SystemTime.format_time(&mut Writer::new(&mut time))?;
    let mut line = format!("{{\"time\":\"{time}\",\"level\":\"{level}\"");
    let message = Value::String(fields.message.unwrap_or_default());
    write!(line, ",\"message\":{message}")?;
    for (name, value) in fields.others {
        write!(line, ",{}:{value}", Value::String(name))?;
    }
    line.push_str("}\n");
    Ok(line)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// Keeps what each call has written.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<String>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let text = String::from_utf8_lossy(bytes).into_owned();
            self.0.lock().unwrap().push(text);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(log: impl FnOnce()) -> Vec<Value> {
        let kept = Kept::default();
        let writer = kept.clone();
        let lines = JsonLines::new(move || writer.clone());
        let subscriber = tracing_subscriber::registry().with(lines);
        tracing::subscriber::with_default(subscriber, log);
        let written = kept.0.lock().unwrap();
        let value = |line: &String| {
            assert!(
                line.ends_with('\n') && line.lines().count() == 1,
                "{line:?}"
            );
            serde_json::from_str(line).unwrap()
        };
        written.iter().map(value).collect()
    }

    #[test]
    fn what_a_line_tells_of_is_in_fields_of_its_own() {
        let lines = logged(|| {
            let sandbox = tracing::error_span!("sandbox", sandbox = "default/demo", turn = 1);
            let _in = sandbox.enter();
            let turn = tracing::info_span!("turn", turn = 2, late = tracing::field::Empty);
            turn.record("late", true);
            let _in = turn.enter();
            tracing::info!(class = %"full", ms = 3_u128, "checkpoint {}", "published");
            tracing::warn!(level = "mine", turn = 7, why = ?Some("a\n\"b\""));
        });
        let [first, second] = &lines[..] else {
            panic!("{lines:?}");
        };
        assert_eq!(first["message"], "checkpoint published");
        assert_eq!(first["level"], "INFO");
        assert_eq!(first["sandbox"], "default/demo");
        assert_eq!(first["turn"], 2);
        assert_eq!(first["late"], true);
        assert_eq!((&first["class"], &first["ms"]), (&"full".into(), &3.into()));
        let time = first["time"].as_str().unwrap();
        assert!(time.ends_with('Z') && time.len() == 27, "{time}");
        assert_eq!(second["turn"], 7);
        assert_eq!(
            (&second["level"], &second["level_"]),
            (&"WARN".into(), &"mine".into())
        );
        assert_eq!(second["why"], r#"Some("a\n\"b\"")"#);
        assert_eq!(second["message"], "");
    }
}
