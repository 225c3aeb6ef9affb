// SPDX-License-Identifier: Apache-2.0

//! `nerdctl checkpoint` and `nerdctl start --checkpoint`.

use anyhow::Result;
use crab_integration::{DEBIAN, State, Testbed, poll};

use crate::{LIMIT, is_untouched, keeper, remembers, token};

#[test]
fn checkpoints_are_made_listed_removed_and_started_from() -> Result<()> {
    let testbed = Testbed::here()?;
    let Some(nerdctl) = testbed.nerdctl()? else {
        return Ok(());
    };
    let container = nerdctl.run(DEBIAN, keeper())?;
    let sandbox = container.sandbox();
    let (pid, known) = (sandbox.pid()?, token(sandbox)?);
    container.checkpoint("one")?;
    is_untouched(sandbox, pid)?;
    remembers(sandbox, &known)?;
    container.checkpoint("two")?;
    assert_eq!(container.checkpoints()?, ["one", "two"]);
    container.forget_checkpoint("one")?;
    assert_eq!(container.checkpoints()?, ["two"]);
    for _ in 0..2 {
        container.stop()?;
        container.start_from("two")?;
        assert_eq!(container.state()?, State::Running);
        remembers(sandbox, &known)?;
        let said = || -> Result<usize> { Ok(container.logs()?.stdout.matches(&known).count()) };
        let before = said()?;
        poll("its output goes on", LIMIT, || {
            Ok((said()? > before).then_some(()))
        })?;
    }
    Ok(())
}
