// SPDX-License-Identifier: Apache-2.0

//! The OCI runtime that the configuration names, or that there is.

use std::path::Path;

use crab_config::BUILT_IN;

use super::{
    check::Check,
    program::{SearchPath, ask},
    version::Version,
};

const NAME: &str = "runtime";

/// The oldest runc whose options are known.
const OLDEST_RUNC: Version = Version(1, 1);

const INSTALL_RUNC: &str = "install runc (Debian, Ubuntu: apt-get install runc)";

pub(crate) async fn check(configured: Option<&Path>, path: &SearchPath) -> Check {
    let configured = match configured {
        Some(name) if name == Path::new(BUILT_IN) => return built_in("by the configuration"),
        Some(name) => name,
        None if path.find(Path::new("runc")).is_none() => {
            return built_in(&format!("as there is no runc on {path}"));
        }
        None => Path::new("runc"),
    };
    let install = match configured == Path::new("runc") {
        true => format!("{INSTALL_RUNC}, or name another as runtime.binary in the configuration"),
        false => "correct runtime.binary in the configuration, or install it".to_owned(),
    };
    let Some(program) = path.find(configured) else {
        let found = format!("{} is not found on {path}", configured.display());
        return Check::fail(NAME, found, install);
    };
    match ask(&program, &["--version"]).await {
        Ok(said) if said.well => judge(&said.stdout, &program),
        Ok(said) => Check::fail(
            NAME,
            format!("{} --version fails: {}", program.display(), said.why()),
            install,
        ),
        Err(why) => Check::fail(NAME, why, install),
    }
}

/// It runs, and is less than what one may expect.
fn built_in(why: &str) -> Check {
    Check::warn(
        NAME,
        format!("the built-in runtime, {why}: processes cannot be kept"),
        INSTALL_RUNC,
    )
}

/// By what `--version` printed: `runc version 1.1.15`, `crun version 1.21` with a line
/// of what it was built with.
fn judge(said: &str, program: &Path) -> Check {
    let kind = said.split_whitespace().next().unwrap_or_default();
    let first = said.lines().next().unwrap_or_default();
    let found = format!("{}, {}", first.trim(), program.display());
    let version = Version::find(first).map(|(version, _)| version);
    match kind {
        "runc" if version.is_some_and(|version| version < OLDEST_RUNC) => Check::warn(
            NAME,
            found,
            format!("install runc {OLDEST_RUNC} or newer: Crab is not tried with older ones"),
        ),
        "crun" if !said.contains("+CRIU") => Check::warn(
            NAME,
            format!("{found}: built without CRIU, processes cannot be kept"),
            "use runc, or a crun that was built with CRIU",
        ),
        _ => Check::ok(NAME, found),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::check::Verdict, *};

    #[test]
    fn runtimes_are_judged_by_what_they_print() {
        let verdict = |said| judge(said, Path::new("/usr/bin/x")).verdict;
        assert_eq!(verdict("runc version 1.1.15+ds1\nspec: 1.0.2"), Verdict::Ok);
        assert_eq!(verdict("runc version 1.0.3\n"), Verdict::Warn);
        assert_eq!(
            verdict("crun version 1.21\n+SYSTEMD +CRIU +YAJL\n"),
            Verdict::Ok
        );
        assert_eq!(verdict("crun version 1.21\n+SYSTEMD\n"), Verdict::Warn);
        assert_eq!(verdict("youki version 0.5.3\n"), Verdict::Ok);
    }

    #[tokio::test]
    async fn one_that_is_not_there_is_said_with_where_it_was_looked_for() {
        let nowhere = SearchPath::new("/no/such/dir");
        let named = check(Some(Path::new("crun")), &nowhere).await;
        assert_eq!(named.verdict, Verdict::Fail);
        assert_eq!(named.found, "crun is not found on /no/such/dir");
        // The command for runc would not help.
        assert!(!named.mend.unwrap_or_default().contains("runc"));
        let none = check(None, &nowhere).await;
        assert_eq!(none.verdict, Verdict::Warn);
        assert_eq!(
            none.found,
            "the built-in runtime, as there is no runc on /no/such/dir: processes cannot be kept"
        );
        let chosen = check(Some(Path::new(BUILT_IN)), &nowhere).await;
        assert_eq!(chosen.verdict, Verdict::Warn);
    }
}
