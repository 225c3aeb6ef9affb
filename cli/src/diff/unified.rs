// SPDX-License-Identifier: Apache-2.0

//! How the text of a file differs, as `diff -u` tells it.
//!
//! Files are a sandbox's: of any size, and made to take long. Each has a limit, and so
//! have all together; what is over it is said in a line.

use std::{
    io,
    time::{Duration, Instant},
};

use serde::Serialize;
use similar::TextDiff;

use super::{
    compare::{Attribute, Comparison, Difference},
    view::{Entry, View},
};
use crate::output::size as told;

/// Longest file that is compared.
const MAX_FILE: u64 = 1 << 20;
/// Most text that all files together give.
const MAX_TEXT: usize = 16 << 20;
/// How long one file may take until the rest of it is told as replaced.
const MAX_TIME: Duration = Duration::from_secs(2);
/// So many lines around each difference.
const CONTEXT: usize = 3;

/// The text of one file's difference, or why there is none.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Text {
    Diff(String),
    None(String),
}

/// What is left of the limits of all files.
pub(super) struct Budget {
    text: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { text: MAX_TEXT }
    }
}

/// Whether there can be text to show: of a regular file whose content differs.
pub(super) fn is_wanted(difference: &Difference) -> bool {
    let is_file = difference.kind == "file" && difference.kind_before.is_none();
    let content = |attribute: &Attribute| matches!(attribute, Attribute::Content { .. });
    let on_both = difference.size.is_some() && difference.size_before.is_some();
    is_file && (!on_both || difference.attributes.iter().any(content))
}

impl Budget {
    /// The text of a file that was, is, or both.
    pub(super) fn text(
        &mut self,
        of: &Comparison<'_>,
        path: &str,
        before: Option<Entry>,
        now: Option<Entry>,
    ) -> io::Result<Text> {
        let none = |why: String| Ok(Text::None(why));
        if self.text == 0 {
            return none(format!(
                "more than {} of text: not shown",
                told(MAX_TEXT as u64)
            ));
        }
        let sizes = [&before, &now].map(|side| side.as_ref().and_then(|entry| entry.kind.size()));
        if let Some(size) = sizes.into_iter().flatten().max()
            && size > MAX_FILE
        {
            return none(format!(
                "larger than {} ({}): not compared",
                told(MAX_FILE),
                told(size)
            ));
        }
        let mut sides = Vec::new();
        for (view, side) in [(&of.a, &before), (&of.b, &now)] {
            match side.as_ref().map(|entry| lines(view, entry)).transpose()? {
                None => sides.push(String::new()),
                Some(Ok(text)) => sides.push(text),
                Some(Err(why)) => return none(why),
            }
        }
        let header = |letter: &str, side: &Option<Entry>| match side {
            Some(_) => format!("{letter}{path}"),
            None => "/dev/null".to_owned(),
        };
        let diff = TextDiff::configure()
            .deadline(Instant::now() + MAX_TIME)
            .diff_lines(&sides[0], &sides[1]);
        let text = diff
            .unified_diff()
            .context_radius(CONTEXT)
            .header(&header("a", &before), &header("b", &now))
            .to_string();
        self.text = self.text.saturating_sub(text.len());
        Ok(Text::Diff(text))
    }
}

/// The content of a file as text, or why it is none.
fn lines(view: &View<'_>, entry: &Entry) -> io::Result<Result<String, String>> {
    let size = entry.kind.size().unwrap_or_default();
    let Some(bytes) = view.bytes(&entry.source, size)? else {
        return Ok(Err("its content is not there".to_owned()));
    };
    let binary = || "binary files differ".to_owned();
    Ok(match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => Err(binary()),
    })
}
