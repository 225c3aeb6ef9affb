// SPDX-License-Identifier: Apache-2.0

//! `crab diff` between the ends of turns of a real sandbox, over a real image.

use anyhow::{Context, Result, ensure};
use crab_integration::{Crab, DEBIAN, RunOptions, Sandbox, Testbed, sleeper};
use crab_store::Class;

fn diff(crab: &Crab, sandbox: &Sandbox, flags: &[&str], a: u64, b: u64) -> Result<Vec<String>> {
    let (id, a, b) = (sandbox.sandbox_id(), a.to_string(), b.to_string());
    let args = [&["diff"], flags, &[id.as_str(), &a, &b]].concat();
    let said = crab.run(&args)?.ok()?.stdout;
    Ok(said.lines().map(str::to_owned).collect())
}

/// What another program says about the same two files, after their names.
fn diffutils(sandbox: &Sandbox, a: &str, b: &str) -> Result<Vec<String>> {
    let said = sandbox.sh_ok(&format!("diff -u {a} {b} || test $? = 1"))?;
    Ok(said.lines().skip(2).map(str::to_owned).collect())
}

#[test]
fn turns_are_compared_over_the_image() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::without_bytecode())?;
        // The first of it is the image's own.
        let keep = "cp -a /etc/bash.bashrc /root/before";
        let first = crab.turn_of(&sandbox, Class::Files, keep)?.number();
        let edit = "sed -i -e 5d -e 's/^if/IF/' -e '$a last' /etc/bash.bashrc; \
             rm /etc/passwd; rm -r /etc/skel; mkdir /etc/skel; \
             chmod 600 /etc/group; chown 7:8 /etc/issue; touch /etc/debian_version; \
             printf '\\0x' >/root/binary; echo x >/dev/shm/x; : >>/etc/ld.so.conf";
        let second = crab.turn_of(&sandbox, Class::Files, edit)?.number();
        let lines = diff(&crab, &sandbox, &["-u"], first, second)?;
        let at = lines.iter().position(String::is_empty).context("no text")?;
        let (list, texts) = lines.split_at(at);
        let told = |begin: &str| list.iter().any(|line| line.starts_with(begin));
        for begin in [
            "+ /dev/shm/x (2 B)",
            "~ /etc/debian_version (time)",
            "~ /etc/group (mode 0644 -> 0600)",
            "~ /etc/issue (owner 0:0 -> 7:8)",
            "- /etc/passwd (",
            "~ /etc/bash.bashrc (",
            "+ /root/binary (2 B)",
            // What the image has in the directory that was replaced.
            "- /etc/skel/.bashrc (",
        ] {
            ensure!(told(begin), "{}: no {begin:?} in {list:#?}", client.name());
        }
        // Only opened for writing, and so copied up.
        ensure!(
            !told("~ /etc/ld.so.conf") && !told("+ /etc/ld.so.conf"),
            "{list:#?}"
        );
        let ours = texts
            .iter()
            .skip_while(|line| *line != "+++ b/etc/bash.bashrc")
            .skip(1)
            .take_while(|line| !line.is_empty());
        let theirs = diffutils(&sandbox, "/root/before", "/etc/bash.bashrc")?;
        ensure!(ours.eq(&theirs), "{texts:#?} and not {theirs:#?}");
        ensure!(texts.contains(&"/root/binary: binary files differ".to_owned()));

        // A turn that left nothing ends as the one before it.
        let idle = crab.turn_of(&sandbox, Class::None, "true")?.number();
        let same = format!("turns {second} and {idle} end alike");
        ensure!(diff(&crab, &sandbox, &[], second, idle)? == [same]);

        let third = crab
            .turn_of(&sandbox, Class::Processes, &sleeper(1000))?
            .number();
        let lines = diff(&crab, &sandbox, &[], idle, third)?;
        let [line] = &lines[..] else {
            anyhow::bail!("{lines:#?}");
        };
        ensure!(
            line.starts_with("+ process ") && line.ends_with("sleep: sleep 1000"),
            "{line}"
        );

        // Back to before, and on from there: what is compared is the states, not the way.
        crab.rollback(&sandbox, first)?;
        let fourth = crab
            .turn_of(&sandbox, Class::Files, "echo x >/root/other")?
            .number();
        let lines = diff(&crab, &sandbox, &[], first, fourth)?;
        ensure!(lines == ["+ /root/other (2 B)"], "{lines:#?}");
        let id = sandbox.sandbox_id();
        let said = crab.run(&[
            "diff",
            "--exit-code",
            &id,
            &first.to_string(),
            &fourth.to_string(),
        ])?;
        ensure!(said.status == 5, "{said:?}");
    }
    Ok(())
}
