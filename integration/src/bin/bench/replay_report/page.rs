// SPDX-License-Identifier: Apache-2.0

//! The page. What it is made of has its own file each; here is their order.

use crab_integration::replay::Record;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{bars, crashes, delays, figures, lists, timeline, units};

/// Nothing is loaded and nothing runs, whatever a record says.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

const STYLE: &str = include_str!("style.css");

/// The sections, as the list of contents has them.
const SECTIONS: [(&str, &str); 13] = [
    ("figures", "Figures"),
    ("strategies", "Strategies"),
    ("recovery", "Recovery"),
    ("timeline", "Bytes per turn"),
    ("traffic", "Traffic"),
    ("delay", "Exposed delay"),
    ("recover", "Time to recover"),
    ("overhead", "Overhead"),
    ("crashes", "Not recovered"),
    ("plays", "Plays"),
    ("rules", "Rules"),
    ("remarks", "Remarks"),
    ("details", "Details"),
];

/// A whole document of HTML.
pub(crate) fn page(record: &Record) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Crab: replay of " (record.date) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "Crab: recorded agents, killed and brought back" }
                    (head(record))
                    nav aria-label="Contents" {
                        ul {
                            @for (id, title) in SECTIONS { li { a href={ "#" (id) } { (title) } } }
                        }
                    }
                }
                main {
                    (figures::figures(&record.figures))
                    (lists::strategies(record))
                    (bars::recovery(record))
                    (timeline::timeline(record))
                    (bars::traffic(record))
                    (delays::exposed(record))
                    (delays::recovery(record))
                    (bars::overhead(record))
                    (crashes::crashes(record))
                    (lists::plays(record))
                    (lists::rules(record))
                    (lists::remarks(record))
                    (lists::details(record))
                }
            }
        }
    }
    .into_string()
}

/// What was played where, and how to get it again.
fn head(record: &Record) -> Markup {
    let turns = record.plays.iter().map(|play| play.turns);
    let turns = turns.fold(0, usize::saturating_add);
    html! {
        dl.facts {
            div { dt { "machine" } dd { (record.machine) } }
            div { dt { "date" } dd { (record.date) } }
            div { dt { "command" } dd { code { (record.command) } } }
            div { dt { "seed" } dd { (record.seed) } }
            div {
                dt { "played" }
                dd { (units::count(record.plays.len(), "play", "plays")) ", " (units::count(turns, "turn", "turns")) }
            }
            div {
                dt { "waits" }
                dd {
                    "\u{d7} " (units::number(record.scale)) " where time was measured, \u{d7} "
                    (units::number(record.fast_scale)) " where only states were compared"
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use roxmltree::Document;

    use super::*;
    use crate::replay_report::sample::{empty, foreign, record};

    /// The page as XML, which is stricter than HTML: every element ends, every attribute is quoted,
    /// every `&` is a reference. HTML's own elements without an end are given one.
    fn parsed(record: &Record, look: impl FnOnce(&str, &Document<'_>)) {
        let page = page(record);
        let mut xml = String::new();
        let mut rest = page.strip_prefix("<!DOCTYPE html>").expect("a document");
        while let Some(at) = ["<meta ", "<br"]
            .iter()
            .filter_map(|of| rest.find(of))
            .min()
        {
            let end = at + rest[at..].find('>').expect("an end");
            xml.push_str(&rest[..end]);
            xml.push('/');
            rest = &rest[end..];
        }
        xml.push_str(rest);
        let document = Document::parse(&xml).unwrap_or_else(|error| panic!("{error}:\n{xml}"));
        look(&page, &document);
    }

    #[test]
    fn it_is_well_formed_and_loads_and_runs_nothing() {
        for record in [record(), empty(), foreign()] {
            parsed(&record, |_, document| {
                let policy = document
                    .descendants()
                    .find(|node| node.attribute("http-equiv") == Some("Content-Security-Policy"));
                assert_eq!(policy.unwrap().attribute("content"), Some(POLICY));
                for node in document.descendants().filter(|node| node.is_element()) {
                    let name = node.tag_name().name();
                    let allowed = ![
                        "script", "link", "img", "iframe", "object", "image", "use", "base",
                    ]
                    .contains(&name);
                    assert!(allowed, "{name}");
                    for attribute in node.attributes() {
                        let (name, value) = (attribute.name(), attribute.value());
                        assert!(!name.starts_with("on") && name != "src", "{name}");
                        assert!(name != "href" || value.starts_with('#'), "{value}");
                        assert!(!value.contains("url("), "{value}");
                    }
                }
            });
        }
        for loads in ["http", "url(", "@import", "</"] {
            assert!(!STYLE.contains(loads), "{loads}");
        }
        assert!(!page(&record()).replace("http-equiv", "").contains("http"));
    }

    #[test]
    fn every_picture_has_a_title_and_every_place_that_is_named_is_there() {
        parsed(&record(), |_, document| {
            let mut pictures = 0;
            for svg in document
                .descendants()
                .filter(|node| node.has_tag_name("svg"))
            {
                let first = svg.first_element_child().expect("an element");
                assert!(
                    first.has_tag_name("title")
                        && first.text().is_some_and(|text| !text.is_empty())
                );
                assert_eq!(svg.attribute("role"), Some("img"));
                pictures += 1;
            }
            assert!(pictures > 10, "{pictures}");
            let ids: Vec<&str> = document
                .descendants()
                .filter_map(|node| node.attribute("id"))
                .collect();
            assert_eq!(
                ids,
                SECTIONS.map(|(id, _)| id),
                "each once, in the order of the contents"
            );
        });
    }

    #[test]
    fn what_a_record_says_is_text_and_nothing_else() {
        parsed(&foreign(), |page, document| {
            assert!(
                !page.contains("<script") && !page.contains("<b>bold"),
                "{page}"
            );
            let texts: Vec<&str> = document
                .descendants()
                .filter(|node| node.is_text())
                .filter_map(|node| node.text())
                .collect();
            let foreign = "</title></style><script>alert('1')</script>&amp;<b>bold\" onload=\"x";
            let whole = texts.iter().filter(|text| text.contains(foreign)).count();
            assert!(whole >= 20, "{whole} places have it as it is");
        });
    }

    #[test]
    fn what_was_not_measured_is_said_to_be_so() {
        let page = page(&empty());
        assert!(page.contains("Not measured.") && page.contains("0 plays"));
        assert!(!page.contains("NaN") && !page.contains("inf%"));
    }

    #[test]
    fn every_crash_that_was_not_recovered_is_there_with_its_differences() {
        let record = record();
        let page = page(&record);
        let failed = || {
            let crashes = record.strategies.iter().flat_map(|kept| &kept.crashes);
            crashes.filter(|crash| !crash.recovered)
        };
        assert_eq!(
            page.matches("<details class=\"crash\">").count(),
            failed().count()
        );
        assert!(failed().count() > 0);
        for difference in failed().flat_map(|crash| &crash.differences) {
            assert!(page.contains(difference.as_str()), "{difference}");
        }
    }
}
