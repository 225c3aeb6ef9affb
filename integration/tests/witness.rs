// SPDX-License-Identifier: Apache-2.0

//! Who compares sandboxes after a crash sees what has changed in them, and nothing else.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crab_integration::{
    DEBIAN, RunOptions, Runtime, Sandbox, Testbed, poll,
    replay::state::{Probe, State, Witness},
};

/// A process that does what is written into a FIFO.
const OBEYS: &str = "mkfifo /var/tmp/orders && setsid bash -c 'exec 9<>/var/tmp/orders 0</dev/null
    while read -r -u 9 order; do eval \"$order\"; done' </dev/null >/dev/null 2>&1 &
    until readlink /proc/*/fd/9 2>/dev/null | grep -q orders; do sleep 0.02; done";
/// One that has files mapped, and stores each byte that it is told. Of a page that was written to,
/// the kernel tells no later store; of a tmpfs none at all.
const MAPS: &str = r#"cat >/root/maps.py <<'END' && python3 /root/maps.py
import mmap, os
fds = [os.open(f, os.O_RDWR | os.O_CREAT) for f in ("/root/mapped", "/dev/shm/mapped")]
for fd in fds:
    os.ftruncate(fd, 4096)
maps = [mmap.mmap(fd, 4096) for fd in fds]
os.mkfifo("/root/stores", 0o600)
stores = os.open("/root/stores", os.O_RDWR)
os.mkfifo("/root/stored", 0o600)
stored = os.open("/root/stored", os.O_RDWR)
if os.fork() == 0:
    os.setsid()
    for fd in range(3):
        os.dup2(os.open("/dev/null", os.O_RDWR), fd)
    while True:
        byte = os.read(stores, 1)
        for m in maps:
            m[7:8] = byte
        os.write(stored, b"\n")
END"#;
/// One that listens.
const LISTENS: &str = r#"python3 -c '
import os, socket
s = socket.socket(socket.AF_UNIX)
s.bind("/run/listens"); s.listen()
if os.fork() == 0:
    os.setsid()
    for fd in range(3):
        os.dup2(os.open("/dev/null", os.O_RDWR), fd)
    s.accept()
'"#;

/// A FIFO tells the time of each write.
const FIFOS: [&str; 5] = [
    "/var/tmp/orders has another time",
    "/var/tmp/crab-probe/in has another time",
    "/var/tmp/crab-probe/out has another time",
    "/root/stores has another time",
    "/root/stored has another time",
];

/// What happens, and what is told of it: between two runs, and in one.
struct Case {
    script: String,
    normal: &'static [&'static str],
    exact: &'static [&'static str],
}

fn case(script: impl Into<String>, told: &'static [&'static str]) -> Case {
    Case {
        script: script.into(),
        normal: told,
        exact: told,
    }
}

fn store(byte: char) -> String {
    format!("printf {byte} >/root/stores; head -c 1 /root/stored >/dev/null")
}

fn sandbox(testbed: &Testbed) -> Result<Sandbox> {
    // Under the stock shim nothing else touches it.
    let options = RunOptions::without_bytecode().runtime(Runtime::Stock);
    testbed.ctr().run(DEBIAN, options)
}

/// Each line says one of these, and each of these is said.
fn says(lines: &[String], told: &[&str]) -> bool {
    let is_expected = |line: &String| told.iter().any(|told| line.contains(told));
    let is_said = |told: &&str| lines.iter().any(|line| line.contains(told));
    lines.iter().all(is_expected) && told.iter().all(is_said)
}

/// Lets it happen, and looks until it is told: an order is obeyed a little later.
fn happens(witness: &mut Witness, sandbox: &Sandbox, case: &Case) -> Result<()> {
    let init = sandbox.pid()?;
    let before = witness.look(init)?;
    sandbox.sh_ok(&case.script)?;
    let mut exact = Vec::new();
    let now = poll("the change is told", Duration::from_secs(10), || {
        let now = witness.look(init)?;
        exact = now.changed_since(&before);
        exact.retain(|line| !FIFOS.contains(&line.as_str()));
        Ok(says(&exact, case.exact).then_some(now))
    });
    let now = now.with_context(|| format!("expected {:?}, told {exact:#?}", case.exact))?;
    let normal = now.differences(&before);
    ensure!(says(&normal, case.normal), "between runs: {normal:#?}");
    ensure!(
        (now.digest() == before.digest()) == normal.is_empty(),
        "digests say otherwise than {normal:#?}"
    );
    Ok(())
}

#[test]
fn what_has_changed_is_told_and_nothing_else() -> Result<()> {
    let testbed = Testbed::here()?;
    let mut witness = Witness::new();
    let sandbox = sandbox(&testbed)?;
    let files = "printf aaaa >/root/file; ln /root/file /root/same; touch -d 2020-01-01 /root/file";
    for script in [files, OBEYS, &Probe::start(), MAPS, &store('x')] {
        sandbox.sh_ok(script)?;
    }
    let order = |order: &str| format!("echo '{order}' >/var/tmp/orders");
    let cases = [
        // First of all, as the page is dirty now.
        case(
            store('y'),
            &[
                "/root/mapped has another content",
                "/dev/shm/mapped has another content",
            ],
        ),
        case(
            "cat /root/file /etc/passwd >/dev/null; ls -lR /etc >/dev/null",
            &[],
        ),
        case("t=$(mktemp); echo x >$t; rm $t", &[]),
        // Of the same size and time.
        case(
            "printf b | dd of=/root/file bs=1 conv=notrunc 2>&1; touch -d 2020-01-01 /root/file",
            &[
                "/root/file has another content",
                "/root/same has another content",
            ],
        ),
        Case {
            script: "touch -d 2020-01-02 /root/file".into(),
            normal: &[],
            exact: &["/root/file has another time", "/root/same has another time"],
        },
        case(
            "chmod 600 /root/file",
            &["/root/file has another mode", "/root/same has another mode"],
        ),
        case(
            "chown 7:8 /etc/passwd; python3 -c 'import os; os.setxattr(\"/etc/passwd\", \"user.x\", b\"1\")'",
            &["/etc/passwd has another owner, attributes"],
        ),
        case(
            "cp -a /root/file /root/f; rm /root/same; mv /root/f /root/same",
            &["no longer one file: /root/file = /root/same"],
        ),
        case(
            "echo x >/dev/shm/x",
            &["/dev/shm/x is new: file 644, 2 bytes"],
        ),
        case("echo y >/dev/shm/x", &["/dev/shm/x has another content"]),
        case("ln -s a /root/link", &["/root/link is new: symlink to a"]),
        case("ln -sfn b /root/link", &["/root/link has another target"]),
        case(
            "rm /etc/debian_version",
            &["/etc/debian_version is missing: file 644"],
        ),
        case(
            "setsid sleep 1000 </dev/null >/dev/null 2>&1 &",
            &["process `sleep 1000` below `sleep infinity` is new"],
        ),
        case(
            order("exec 8</etc/passwd"),
            &["another descriptor 8: /etc/passwd at 0, read, not none"],
        ),
        case(
            order("exec 8</etc/group"),
            &["another descriptor 8: /etc/group at 0, read, not /etc/passwd at 0, read"],
        ),
        case(order("cd /tmp"), &["another cwd: /tmp, not /"]),
        case(Probe::poke(1), &["has another memory of the probe"]),
        case(
            LISTENS,
            &[
                "/run/listens is new",
                "listening at unix stream /run/listens",
                "process `python3 -c",
            ],
        ),
    ];
    for case in cases {
        happens(&mut witness, &sandbox, &case).with_context(|| case.script.clone())?;
    }
    Ok(())
}

#[test]
fn two_sandboxes_with_the_same_past_are_alike_and_with_another_are_not() -> Result<()> {
    let testbed = Testbed::here()?;
    let mut witness = Witness::new();
    let (one, other) = (sandbox(&testbed)?, sandbox(&testbed)?);
    let mut pasts: Vec<Vec<State>> = Vec::new();
    for sandbox in [&one, &other] {
        let mut states = Vec::new();
        for script in [
            "true",
            &Probe::start(),
            &Probe::poke(7),
            // What no two runs have alike, and the sum of it.
            "mkdir /w && cd /w && date >date; mktemp -p /tmp; mktemp -d; gzip -k date && sha256sum date.gz >a; \
             tar cf tar date; echo x >x; git init -q . 2>&1; git add x 2>&1",
            // Another digit in each.
            &format!("cd /w; echo {} >b; gzip b", pasts.len()),
        ] {
            sandbox.sh_ok(script)?;
            states.push(witness.look(sandbox.pid()?)?);
        }
        pasts.push(states);
    }
    let last = pasts[0].len() - 1;
    for (n, (one, other)) in pasts[0].iter().zip(&pasts[1]).enumerate() {
        let differences = other.differences(one);
        let told: &[&str] = match n == last {
            true => &["/w/b.gz has another content"],
            false => &[],
        };
        ensure!(says(&differences, told), "{n}: {differences:#?}");
        ensure!((one.digest() == other.digest()) == told.is_empty(), "{n}");
    }
    // Its memory also tells in which order it was poked.
    one.sh_ok(&format!("({}); ({})", Probe::poke(1), Probe::poke(2)))?;
    other.sh_ok(&format!("({}); ({})", Probe::poke(2), Probe::poke(1)))?;
    let (one, other) = (witness.look(one.pid()?)?, witness.look(other.pid()?)?);
    let differences = other.differences(&one);
    ensure!(
        says(
            &differences,
            &["another memory of the probe", "/w/b.gz has another content"]
        ),
        "{differences:#?}"
    );
    Ok(())
}

#[test]
fn nothing_in_a_sandbox_hinders_the_look() -> Result<()> {
    let testbed = Testbed::here()?;
    let mut witness = Witness::new();
    let sandbox = sandbox(&testbed)?;
    let init = sandbox.pid()?;
    sandbox.sh_ok(
        "mkdir /bad && cd /bad && mkfifo fifo && mknod null c 1 3 && mknod zero c 1 5
        ln -s b a; ln -s a b; ln -s /proc/1/root up; ln -s /bad self; truncate -s 4T holes
        name=$(printf 'new\\nline \\377'); touch \"$name\" -- '-r' '* ?'
        for i in $(seq 100); do mkdir d; cd d; done; echo deep >file
        chmod 000 /bad",
    )?;
    let before = witness.look(init)?;
    let again = witness.look(init)?;
    ensure!(
        again.changed_since(&before).is_empty(),
        "{:#?}",
        again.changed_since(&before)
    );
    sandbox.sh_ok("cd /bad && for i in $(seq 100); do cd d; done; echo Deep >file")?;
    let deep = witness.look(init)?;
    let told = deep.changed_since(&again);
    ensure!(
        says(&told, &["/d/d/d/file has another content"]),
        "{told:#?}"
    );
    sandbox.sh_ok("cd /bad && rm null fifo && mknod null c 1 7 && touch fifo")?;
    let told = witness.look(init)?.differences(&deep);
    ensure!(
        says(
            &told,
            &["/bad/null has another device", "/bad/fifo has another type"]
        ),
        "{told:#?}"
    );
    // Deeper than anybody works: said, and not looked into.
    sandbox.sh_ok("mkdir /deep && cd /deep && for i in $(seq 400); do mkdir d && cd d; done")?;
    let refused = witness.look(init).expect_err("it was looked into");
    ensure!(
        format!("{refused:#}").contains("300 directories deep"),
        "{refused:#}"
    );
    Ok(())
}
