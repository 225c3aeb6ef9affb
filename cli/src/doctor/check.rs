// SPDX-License-Identifier: Apache-2.0

//! One thing that was looked at, and what came of it.

use std::fmt;

use serde::Serialize;

/// How it stands with one thing. The words are part of `--json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// As it should be.
    Ok,
    /// Crab works, and something costs more or is not kept.
    Warn,
    /// Crab needs it.
    Fail,
    /// It is not on this host, and need not be.
    Absent,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::Absent => "-",
        })
    }
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    /// What was looked at; the same word from version to version.
    pub(crate) check: &'static str,
    pub(crate) verdict: Verdict,
    /// What there is.
    pub(crate) found: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mend: Option<String>,
}

impl Check {
    fn new(check: &'static str, verdict: Verdict, found: impl Into<String>) -> Self {
        Self {
            check,
            verdict,
            found: found.into(),
            mend: None,
        }
    }

    pub(crate) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Verdict::Ok, found)
    }

    pub(crate) fn absent(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Verdict::Absent, found)
    }

    /// Of what is not as it should be, it is always said what to do.
    pub(crate) fn warn(
        check: &'static str,
        found: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self::new(check, Verdict::Warn, found).mended_by(mend)
    }

    pub(crate) fn fail(
        check: &'static str,
        found: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self::new(check, Verdict::Fail, found).mended_by(mend)
    }

    fn mended_by(mut self, mend: impl Into<String>) -> Self {
        self.mend = Some(mend.into());
        self
    }
}
