// SPDX-License-Identifier: Apache-2.0

//! The demo: an agent's session in a sandbox under Crab, on real containerd and
//! real Docker. `scripts/demo` builds everything and runs it in the test host.

mod baseline;
mod report;
mod session;
mod show;

use std::{env, process::ExitCode};

use anyhow::{Result, bail};
use crab_integration::Testbed;

use crate::report::{Figures, Story, object};

const USAGE: &str = "usage: demo [--json]   (inside the test host; outside, scripts/demo)";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool> {
    let mut json = false;
    for arg in env::args().skip(1) {
        match arg.as_str() {
            "--json" => json = true,
            "-h" | "--help" => {
                println!("{USAGE}");
                return Ok(true);
            }
            _ => bail!("{arg} is no option; {USAGE}"),
        }
    }
    let testbed = Testbed::here()?;
    let story = Story { to_stderr: json };
    story.line(testbed.machine());
    let figures = figures(story, &testbed)?;
    if json {
        println!("{}", object(&figures)?);
    } else {
        story.title("figures");
        story.line(serde_json::to_string_pretty(&figures)?);
    }
    Ok(figures.all_good())
}

fn figures(story: Story, testbed: &Testbed) -> Result<Figures> {
    let events = testbed.events()?;
    let ctr = show::show(story, testbed, &events, testbed.ctr());
    let docker = show::show(story, testbed, &events, testbed.docker());
    let mut figures = Figures {
        misclassified: ctr.misclassified + docker.misclassified,
        rollback_ok: u8::from(ctr.rollback_ok),
        restore_ok: u8::from(ctr.restore_ok),
        docker_ok: u8::from(docker.all_good()),
        bytes_crab: ctr.bytes,
        ..Figures::default()
    };
    figures.count(&ctr.session);
    match baseline::full_every_turn(story, testbed.ctr()) {
        Ok(bytes) => figures.bytes_full_every_turn = bytes,
        Err(error) => story.check(false, format!("{error:#}")),
    }
    Ok(figures)
}
