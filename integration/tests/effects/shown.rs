// SPDX-License-Identifier: Apache-2.0

//! `crab show` names what a person cares about.

use anyhow::{Result, ensure};
use crab_integration::{DEBIAN, RunOptions, Testbed, Tool};
use crab_store::Class;
use serde_json::Value;

/// The lists in the record of a turn.
fn effects(show: &Value) -> &Value {
    &show["record"]["effects"]
}

#[test]
fn a_server_that_a_turn_leaves_is_told_with_where_it_listens() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::without_bytecode())?;
        let serve = "cd /root; setsid python3 -m http.server 8099 --bind 127.0.0.1 \
             </dev/null >/dev/null 2>&1 & \
             until grep -q ':1FA3 00000000:0000 0A' /proc/net/tcp; do :; done";
        let (said, turn) = crab.turn(&sandbox, &["sh", "-c", serve])?;
        said.ok()?;
        let show = crab.show(&sandbox, turn.number())?;
        let told = effects(&show);
        let started = &told["processes"][0];
        ensure!(started["change"] == "started", "{show}");
        ensure!(
            started["cmdline"] == "python3 -m http.server 8099 --bind 127.0.0.1",
            "{show}"
        );
        ensure!(started["pid"].is_u64(), "{show}");
        let socket = &told["listening"][0];
        ensure!(
            socket["protocol"] == "tcp" && socket["address"] == "127.0.0.1:8099",
            "{show}"
        );
        let text = crab.run(&["show", &sandbox.sandbox_id(), &turn.number().to_string()])?;
        let text = text.ok()?.stdout;
        ensure!(
            text.contains("listens     on tcp 127.0.0.1:8099 by python3"),
            "{text}"
        );

        let kill = "pkill -f '[h]ttp.server'; while pgrep -f '[h]ttp.server'; do :; done";
        let turn = crab.turn_of(&sandbox, Class::Processes, kill)?;
        let show = crab.show(&sandbox, turn.number())?;
        ensure!(
            effects(&show)["processes"][0]["change"] == "ended",
            "{show}"
        );
    }
    Ok(())
}

/// Two names for one end, so that a network is there that nobody else has.
const NETWORK: &str = "ip link add v0 type veth peer name v1 && ip addr add 10.9.9.1/24 dev v0 && \
     ip link set v0 up && ip link set v1 up";

#[test]
fn what_goes_out_is_told_although_nothing_is_left_of_it() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::without_bytecode())?;
    let pid = sandbox.pid()?.to_string();
    Tool::new("nsenter")
        .args(["-t", &pid, "-n", "sh", "-c", NETWORK])
        .run()?
        .ok()?;
    let turn = crab.turn_of(&sandbox, Class::None, "true")?;
    ensure!(turn.record.effects.external.is_empty(), "{:?}", turn.record);
    let send = "python3 -c 'import socket; \
         s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b\"x\" * 1000, (\"10.9.9.2\", 9)); \
         c = socket.socket(); c.setblocking(False); c.connect_ex((\"10.9.9.2\", 9))'";
    let turn = crab.turn_of(&sandbox, Class::None, send)?;
    let external = &turn.record.effects.external;
    ensure!(external.get("sent_bytes") == Some(&1000), "{external:?}");
    ensure!(external.get("connected") == Some(&1), "{external:?}");
    let text = crab.run(&["show", &sandbox.sandbox_id(), &turn.number().to_string()])?;
    let text = text.ok()?.stdout;
    ensure!(text.contains("went out    1 connection begun\n"), "{text}");
    Ok(())
}

#[test]
fn files_are_told_with_what_they_are_and_how_large_they_were() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let sandbox = testbed.ctr().run(DEBIAN, RunOptions::new())?;
    crab.turn_of(
        &sandbox,
        Class::Files,
        "printf 1234 >/root/grows; printf 12 >/root/goes",
    )?;
    let was = sandbox.sh_ok("stat -c %s /etc/debian_version /etc/passwd")?;
    let sizes: Vec<u64> = was.split_whitespace().flat_map(str::parse).collect();
    let turn = crab.turn_of(
        &sandbox,
        Class::Files,
        "printf 5 >>/root/grows; rm /root/goes; mkdir /root/dir; ln -s x /root/link; \
         printf new >/etc/debian_version; rm /etc/passwd",
    )?;
    let show = crab.show(&sandbox, turn.number())?;
    let changed = show["record"]["changed"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let told: Vec<String> = changed
        .iter()
        .map(|c| {
            format!(
                "{} {} {} {} {}",
                c["change"], c["path"], c["kind"], c["before"], c["size"]
            )
        })
        .collect();
    let expected = [
        format!(r#""changed" "/etc/debian_version" "file" {} 3"#, sizes[0]),
        format!(r#""removed" "/etc/passwd" "file" {} null"#, sizes[1]),
        r#""added" "/root/dir" "dir" null null"#.to_owned(),
        r#""removed" "/root/goes" "file" 2 null"#.to_owned(),
        r#""changed" "/root/grows" "file" 4 5"#.to_owned(),
        r#""added" "/root/link" "symlink" null null"#.to_owned(),
    ];
    ensure!(told == expected, "{told:#?}");
    Ok(())
}
