// SPDX-License-Identifier: Apache-2.0

//! Ports that the kernel chose, where they were written down.

use super::{Window, is_chosen};

/// How Python writes the address of a socket: `('127.0.0.1', 40004)`.
const BEGIN: &[u8] = b"('";
const MIDDLE: &[u8] = b"', ";

/// Text in which such a port is none; nothing if there is none in it.
pub(super) fn text(text: &[u8], _: &Window) -> Option<Vec<u8>> {
    let mut ruled: Option<Vec<u8>> = None;
    let (mut at, mut done) = (0, 0);
    while let Some(begin) = text[at..].windows(BEGIN.len()).position(|it| it == BEGIN) {
        at += begin + BEGIN.len();
        let Some((from, to)) = port(text, at) else {
            continue;
        };
        let ruled = ruled.get_or_insert_default();
        ruled.extend_from_slice(&text[done..from]);
        ruled.extend_from_slice(b"(chosen)");
        (at, done) = (to, to);
    }
    if let Some(ruled) = &mut ruled {
        ruled.extend_from_slice(&text[done..]);
    }
    ruled
}

/// Where a chosen port is, behind an address that begins here.
fn port(text: &[u8], at: usize) -> Option<(usize, usize)> {
    let is_of_address = |byte: &&u8| byte.is_ascii_hexdigit() || matches!(**byte, b'.' | b':');
    let address = text[at..].iter().take_while(is_of_address).count();
    let from = at + address + MIDDLE.len();
    if address == 0 || text.get(at + address..from)? != MIDDLE {
        return None;
    }
    let digits = text[from..].iter().take_while(|byte| byte.is_ascii_digit());
    let to = from + digits.count();
    let number: u16 = std::str::from_utf8(&text[from..to]).ok()?.parse().ok()?;
    // Of IPv6 there are a flow and a scope more.
    let ends = matches!(text.get(to), Some(b')' | b','));
    (ends && is_chosen(number)).then_some((from, to))
}

#[cfg(test)]
mod tests {
    use super::{super::tests::hour, *};

    fn of(line: &str) -> String {
        let ruled = text(line.as_bytes(), &hour());
        String::from_utf8(ruled.unwrap_or_else(|| line.into())).unwrap()
    }

    #[test]
    fn only_a_port_that_the_kernel_chooses_is_passed_over() {
        let said = "request from ('127.0.0.1', 40004), and ('::1', 40005, 0, 0)";
        let alike = "request from ('127.0.0.1', (chosen)), and ('::1', (chosen), 0, 0)";
        assert_eq!(of(said), alike);
        for other in [
            "('127.0.0.1', 8080)",
            "('127.0.0.1', 61000)",
            "('127.0.0.1', 400040)",
            "('127.0.0.1', '40004')",
            "('name', 40004)",
            "('', 40004)",
            "127.0.0.1:40004",
            "('",
        ] {
            assert_eq!(of(other), other);
        }
        assert_ne!(of("('127.0.0.1', 40004)"), of("('127.0.0.2', 40004)"));
    }
}
