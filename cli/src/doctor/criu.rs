// SPDX-License-Identifier: Apache-2.0

//! CRIU: found, new enough for this kernel, and in agreement.

use std::path::Path;

use super::{
    check::Check,
    program::{SearchPath, ask},
    version::Version,
};

const NAME: &str = "criu";

/// The oldest that dumps on current kernels at all: it knows rseq.
const OLDEST: Version = Version(3, 17);
/// Older ones fail on the vDSO of newer kernels.
const NEW_VDSO: Version = Version(4, 0);
/// Linux 6.16 refuses an option of internet sockets (SO_PASSCRED) that older ones ask for.
const INET: (Version, Version) = (Version(4, 2), Version(6, 16));

const INSTALL: &str = "install CRIU 4.x (Debian 13, Ubuntu 25.04 and newer: apt-get install criu)";

/// `configured`: the one of the configuration.
pub(crate) async fn check(configured: Option<&Path>, path: &SearchPath, kernel: &str) -> Check {
    let name = configured.unwrap_or(Path::new("criu"));
    let Some(program) = path.find(name) else {
        let mend = match configured {
            Some(_) => {
                "correct runtime.criu in the configuration, or install CRIU there".to_owned()
            }
            None => INSTALL.to_owned(),
        };
        let looked = match configured {
            Some(name) => format!("no {}", name.display()),
            None => format!("not found on {path}"),
        };
        return Check::fail(NAME, format!("{looked}: processes cannot be kept"), mend);
    };
    let said = match ask(&program, &["--version"]).await {
        Ok(said) => said,
        Err(why) => return Check::fail(NAME, why, INSTALL),
    };
    let Some((version, word)) = Version::find(&said.stdout) else {
        let found = format!("{} --version tells no version", program.display());
        return Check::fail(NAME, found, INSTALL);
    };
    let refused = match ask(&program, &["check"]).await {
        Ok(said) if said.well => None,
        Ok(said) => Some(said.why()),
        Err(why) => Some(why),
    };
    judge(
        &format!("CRIU {word}, {}", program.display()),
        version,
        Version::parse(kernel),
        refused,
    )
}

/// `refused`: what its own check found.
fn judge(found: &str, version: Version, kernel: Option<Version>, refused: Option<String>) -> Check {
    if version < OLDEST {
        return Check::fail(NAME, format!("{found}: too old to keep processes"), INSTALL);
    }
    if let Some(why) = refused {
        let mend = match version < NEW_VDSO {
            true => INSTALL,
            false => "see `criu check`; a newer CRIU may do",
        };
        let found =
            format!("{found}: does not work on this kernel ({why}): processes cannot be kept");
        return Check::fail(NAME, found, mend);
    }
    let (version_needed, since) = INET;
    if version < version_needed && kernel.is_some_and(|kernel| kernel >= since) {
        return Check::warn(
            NAME,
            format!(
                "{found}: on Linux {since} and newer it cannot keep processes with an internet socket"
            ),
            format!(
                "install CRIU {version_needed} or newer, if your sandboxes have servers in them"
            ),
        );
    }
    Check::ok(NAME, found)
}

#[cfg(test)]
mod tests {
    use super::{super::check::Verdict, *};

    fn verdict(criu: Version, kernel: &str, refused: Option<&str>) -> Verdict {
        let refused = refused.map(str::to_owned);
        judge("CRIU", criu, Version::parse(kernel), refused).verdict
    }

    #[test]
    fn each_criu_is_judged_with_the_kernel_it_is_on() {
        assert_eq!(verdict(Version(4, 1), "6.12.0", None), Verdict::Ok);
        assert_eq!(verdict(Version(4, 1), "6.16.0", None), Verdict::Warn);
        assert_eq!(verdict(Version(4, 2), "6.18.0", None), Verdict::Ok);
        assert_eq!(verdict(Version(3, 16), "5.10.0", None), Verdict::Fail);
        assert_eq!(verdict(Version(3, 17), "6.1.0", None), Verdict::Ok);
        assert_eq!(verdict(Version(4, 2), "6.18.0", Some("no")), Verdict::Fail);
    }

    #[test]
    fn an_old_one_that_fails_is_to_be_replaced_and_the_reason_is_told() {
        let check = judge(
            "CRIU 3.17",
            Version(3, 17),
            None,
            Some("vdso: Error".into()),
        );
        assert!(check.found.contains("vdso: Error"));
        assert_eq!(check.mend.as_deref(), Some(INSTALL));
    }
}
