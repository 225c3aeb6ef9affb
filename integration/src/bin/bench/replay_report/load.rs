// SPDX-License-Identifier: Apache-2.0

//! The file of a record. One of another version, or of something else, is refused by its first
//! words, before its fields are looked at.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use crab_integration::replay::{Record, VERSION};
use serde::Deserialize;

/// What every file of this kind begins with, whatever version it has.
#[derive(Deserialize)]
struct Envelope {
    version: u64,
    name: String,
}

/// Fails where there is no such file, or it holds no record of [`VERSION`].
pub(crate) fn load(path: &Path) -> Result<Record> {
    let text = fs::read(path).with_context(|| format!("read {}", path.display()))?;
    parse(&text).with_context(|| path.display().to_string())
}

fn parse(text: &[u8]) -> Result<Record> {
    let envelope: Envelope = serde_json::from_slice(text)
        .context("no record of a replay: an object with `version` and `name` is wanted")?;
    ensure!(
        envelope.name == "replay",
        "a record of `{}`, not of a replay: what `scripts/bench replay` writes is wanted",
        envelope.name.escape_default()
    );
    ensure!(
        envelope.version == u64::from(VERSION),
        "a record of version {}, and this one reads version {VERSION}: take the scripts/bench \
         that wrote it, or play again",
        envelope.version
    );
    serde_json::from_slice(text).context("a record of a replay that is not whole")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay_report::sample::record;

    fn refusal(text: &str) -> String {
        let refusal = format!("{:#}", parse(text.as_bytes()).unwrap_err());
        assert!(!refusal.contains('\n'), "one line: {refusal}");
        refusal
    }

    #[test]
    fn what_was_written_is_read() {
        let text = serde_json::to_vec(&record()).unwrap();
        let read = parse(&text).unwrap();
        assert_eq!(serde_json::to_vec(&read).unwrap(), text);
    }

    #[test]
    fn what_is_no_record_is_refused_with_the_reason() {
        for (text, why) in [
            ("", "no record of a replay"),
            ("plainly not", "no record of a replay"),
            ("[1]", "no record of a replay"),
            (
                r#"{"name":"density","machine":"x"}"#,
                "missing field `version`",
            ),
            (r#"{"version":1,"name":"density"}"#, "a record of `density`"),
            (r#"{"version":2,"name":"replay","more":1}"#, "version 2"),
            (r#"{"version":1,"name":"replay"}"#, "missing field"),
        ] {
            let refusal = refusal(text);
            assert!(refusal.contains(why), "{text}: {refusal}");
        }
    }

    #[test]
    fn a_field_that_is_unknown_is_refused_by_its_name() {
        let mut value = serde_json::to_value(record()).unwrap();
        value["strategies"][0]["mood"] = "good".into();
        assert!(refusal(&value.to_string()).contains("`mood`"));
    }

    #[test]
    fn a_number_that_is_none_is_refused() {
        let text = serde_json::to_string(&record()).unwrap();
        let text = text.replacen("\"scale\":0.25", "\"scale\":1e999", 1);
        assert!(refusal(&text).contains("number out of range"));
    }
}
