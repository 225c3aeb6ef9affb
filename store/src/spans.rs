// SPDX-License-Identifier: Apache-2.0

//! When the parts of a turn's end took place: by the clock on the wall, so that they stand beside what
//! other programs tell of the same time.

use serde::{Deserialize, Serialize};

/// A part, from its beginning to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// When it began, in microseconds since the Unix epoch.
    pub at_us: u64,
    /// How long it took, in microseconds.
    pub took_us: u64,
}

impl Span {
    /// When it was over, in microseconds since the Unix epoch.
    pub fn end_us(&self) -> u64 {
        self.at_us.saturating_add(self.took_us)
    }
}

/// The parts of a turn's end. Those that there were not, and those of records of earlier versions,
/// are not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spans {
    /// From the look at the sandbox to its class, or to the capture where there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decide: Option<Span>,
    /// Within that: the capture waited for its turn among those of other sandboxes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Span>,
    /// The capture, until it let go of the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture: Option<Span>,
    /// Within that: the sandbox stood still.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frozen: Option<Span>,
    /// What was captured waited to be stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub publish_wait: Option<Span>,
    /// It was stored, up to the manifest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub publish: Option<Span>,
}

impl Spans {
    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Those that there are, each with its name and that of the one that it is a part of, in the
    /// order in which they begin.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, Option<&'static str>, Span)> {
        [
            ("decide", None, self.decide),
            ("wait", Some("decide"), self.wait),
            ("capture", None, self.capture),
            ("frozen", Some("capture"), self.frozen),
            ("publish-wait", None, self.publish_wait),
            ("publish", None, self.publish),
        ]
        .into_iter()
        .filter_map(|(name, within, span)| Some((name, within, span?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_takes_no_room_and_need_not_be_there() {
        let spans = Spans {
            decide: Some(Span {
                at_us: 5,
                took_us: 7,
            }),
            ..Spans::default()
        };
        let text = serde_json::to_string(&spans).unwrap();
        assert_eq!(text, r#"{"decide":{"at_us":5,"took_us":7}}"#);
        assert_eq!(serde_json::from_str::<Spans>(&text).unwrap(), spans);
        let later = r#"{"decide":{"at_us":5,"took_us":7},"thaw":{"at_us":1,"took_us":1}}"#;
        assert_eq!(serde_json::from_str::<Spans>(later).unwrap(), spans);
        let named: Vec<_> = spans.named().map(|(name, ..)| name).collect();
        assert_eq!(named, ["decide"]);
        assert!(Spans::default().is_empty() && !spans.is_empty());
    }
}
