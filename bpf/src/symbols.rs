// SPDX-License-Identifier: Apache-2.0
//! Which functions the running kernel has, by its own list of symbols: not all that it
//! has are in its type information.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader};

const KALLSYMS: &str = "/proc/kallsyms";

/// What every kernel has, and says so wherever it says anything.
const ALWAYS: &str = "__x64_sys_write";

/// Those of `wanted` that the kernel has.
pub(crate) fn present(wanted: &[&'static str]) -> io::Result<BTreeSet<&'static str>> {
    let file = File::open(KALLSYMS)?;
    // A line of some 40 bytes for each of 200,000 symbols.
    let mut found = find(BufReader::with_capacity(1 << 16, file), wanted)?;
    if !found.contains(ALWAYS) {
        return Err(io::Error::other(format!(
            "{KALLSYMS} lists no system calls"
        )));
    }
    found.retain(|name| wanted.contains(name));
    Ok(found)
}

fn find(mut lines: impl BufRead, wanted: &[&'static str]) -> io::Result<BTreeSet<&'static str>> {
    let wanted: BTreeSet<&str> = wanted.iter().copied().chain([ALWAYS]).collect();
    let mut found = BTreeSet::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        if lines.read_until(b'\n', &mut line)? == 0 {
            return Ok(found);
        }
        // `address type name`, and a module's in brackets after it.
        let name = line.split(u8::is_ascii_whitespace).nth(2);
        let name = name.and_then(|name| std::str::from_utf8(name).ok());
        if let Some(name) = name.and_then(|name| wanted.get(name)) {
            found.insert(*name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_names_are_found_and_no_others() {
        let text = "ffffffff81000000 T __x64_sys_write\n\
                    ffffffff81000010 t do_one\n\
                    ffffffffc0000000 t of_module\t[module]\n\
                    ffffffff81000020 T do_one_more\n";
        let wanted = ["do_one", "do_one_mor", "of_module", "T"];
        let found = find(text.as_bytes(), &wanted).unwrap();
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            ["__x64_sys_write", "do_one", "of_module"]
        );
    }

    #[test]
    fn the_running_kernel_lists_what_it_has() {
        let found = present(&["__x64_sys_openat", "__x64_sys_of_no_kernel"]).unwrap();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["__x64_sys_openat"]);
    }
}
