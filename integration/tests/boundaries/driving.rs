// SPDX-License-Identifier: Apache-2.0

//! Each way of driving a sandbox, by both clients: as many turns as there have to be, each
//! with what was done in it.

use anyhow::{Result, ensure};
use crab_integration::{
    Testbed,
    styles::{Style, play},
};

fn ends_its_turns(style: Style) -> Result<()> {
    let testbed = Testbed::here()?;
    for (client, steps) in testbed.clients().into_iter().zip([2, 1]) {
        let steps = if style == Style::Background { 2 } else { steps };
        let found = play(&testbed, client, style, steps)?;
        println!("{style:?} by {}: {found:?}", client.name());
        ensure!(found.errors.is_empty(), "{}: {found:?}", client.name());
    }
    Ok(())
}

#[test]
fn one_exec_for_each_command() -> Result<()> {
    ends_its_turns(Style::Execs)
}

#[test]
fn several_execs_at_once_are_one_turn() -> Result<()> {
    ends_its_turns(Style::ExecsAtOnce)
}

#[test]
fn a_shell_behind_a_pipe_without_a_terminal() -> Result<()> {
    ends_its_turns(Style::ShellByPipe)
}

#[test]
fn a_shell_at_a_terminal_as_the_containers_program() -> Result<()> {
    ends_its_turns(Style::ShellAtTerminal)
}

#[test]
fn tmux_inside_with_keys_and_screen_by_execs() -> Result<()> {
    ends_its_turns(Style::Tmux)
}

#[test]
fn a_python_repl_behind_a_pipe() -> Result<()> {
    ends_its_turns(Style::Python)
}

#[test]
fn a_python_repl_with_line_editing() -> Result<()> {
    ends_its_turns(Style::PythonAtTerminal)
}

#[test]
fn a_database_shell() -> Result<()> {
    ends_its_turns(Style::Sqlite)
}

#[test]
fn a_build_that_runs_on_in_the_background() -> Result<()> {
    ends_its_turns(Style::Background)
}

#[test]
fn a_command_that_prints_slowly_is_one_turn() -> Result<()> {
    ends_its_turns(Style::SlowPrinter)
}

#[test]
fn an_agent_inside_that_an_exec_began() -> Result<()> {
    ends_its_turns(Style::AgentInside)
}

#[test]
fn an_agent_that_is_the_containers_program() -> Result<()> {
    ends_its_turns(Style::AgentAsProgram)
}

#[test]
fn a_command_that_waits_for_an_answer_has_ended_its_turn() -> Result<()> {
    ends_its_turns(Style::Asks)
}
