// SPDX-License-Identifier: Apache-2.0
//! When a turn is over while the program that was told something lives on: from looks at the
//! sandbox's processes and a clock, and nothing else.
//!
//! ```text
//!            somebody is blocked reading the stdin?
//!   no  --> a command is under way                             look again later
//!   yes --> nobody runs but what ran before the turn?
//!             yes, and the same at the next look, with nothing done in between   --> over
//!             no, and it has been so for very long: it was left in the background --> over
//! ```
//! A turn that a hint began needs nobody who reads, but a long rest. An agent inside, told by nobody,
//! waits for its model when all sleep for a while and somebody waits for what comes over a
//! connection; who has no children must wait to be told something, too, or else it is
//! the agent's tool that sleeps (`sleep 5`).
//!
//! A snapshot may fall into the moment in which all are asleep between two steps of a
//! pipeline, so rest takes two. The time between looks grows with the turn: what took a
//! second is not delayed by more than a twentieth of that, and what takes an hour costs two
//! looks a second.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crab_runtime::waits::Seen;

/// Between the two looks that make rest.
const CONFIRM: Duration = Duration::from_millis(10);
/// The share of a turn's time until now that may pass until the next look.
const SHARE: u32 = 20;
const SOONEST: Duration = Duration::from_millis(10);
const LATEST: Duration = Duration::from_millis(500);
/// So many settle times somebody waits for input while others run, until these count as
/// left in the background.
const PATIENCE: u32 = 20;
/// So many times the rest of an agent inside a program has to live before it counts as one.
const AGE: u32 = 10;
/// So many generations are followed: what the sandbox says of parents may go in circles.
const GENERATIONS: usize = 64;

/// A process, by pid and start time.
type Key = (i32, u64);

/// How far each process has run.
pub(super) type Progress = BTreeMap<Key, (u64, u64)>;

/// What was there when the turn opened.
#[derive(Debug, Clone)]
pub(super) enum Before {
    /// Everything that started before this time, in clock ticks after boot: the turn was
    /// opened by a program's start.
    Start(u64),
    /// These, by whether they ran while nobody had told them anything.
    Seen(BTreeMap<Key, bool>),
}

/// What a look means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The turn is over, since this time.
    Over(Instant),
    /// To be looked at again after so long.
    Again(Duration),
}

/// What ends a turn of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Who was told something waits to be told more.
    Told { patience: Duration },
    /// An agent inside has waited for the network for so long.
    Inside(Duration),
    /// Everything has rested for so long.
    Rest(Duration),
}

/// A turn that may end while its programs live.
#[derive(Debug)]
pub(super) struct Quiescence {
    began: Instant,
    rule: Rule,
    before: Before,
    /// From when on an agent inside counts beside the rule, and its rest.
    inside: Option<(Instant, Duration)>,
    /// When all were first found at rest, and how far they had run.
    rested: Option<(Instant, Progress)>,
    /// Since when somebody has been blocked reading at every look.
    waiting: Option<Instant>,
}

fn key(process: &Seen) -> Key {
    (process.pid, process.start)
}

/// How far each of these has run.
pub(super) fn progress(seen: &[Seen]) -> Progress {
    let all = seen.iter();
    all.map(|process| (key(process), process.progress))
        .collect()
}

/// Whether of these somebody waits for the network, and all who have no children wait to be
/// told something.
fn waits_for_network(of_turn: &[&Seen]) -> bool {
    let has_children = |pid: i32| of_turn.iter().any(|process| process.parent == pid);
    let mut leaves = of_turn.iter().filter(|process| !has_children(process.pid));
    of_turn.iter().any(|process| process.awaits_network) && leaves.all(|leaf| leaf.listens)
}

impl Before {
    /// From a look right before the first byte is handed on, and how things were when the
    /// last turn was over: whoever has run in between did so of its own accord.
    pub(super) fn of(now: &[Seen], at_rest: Option<&Progress>) -> Self {
        let ran = |process: &Seen| {
            let has_run = at_rest.is_some_and(|then| {
                then.get(&key(process))
                    .is_none_or(|then| *then != process.progress)
            });
            !process.reads && (process.runs || has_run)
        };
        Self::Seen(now.iter().map(|p| (key(p), ran(p))).collect())
    }

    /// Whether it is background work; nothing if it is new.
    fn is_background(&self, process: &Seen) -> Option<bool> {
        match self {
            Self::Start(ticks) => (process.start < *ticks).then_some(!process.reads),
            Self::Seen(before) => before.get(&key(process)).copied(),
        }
    }

    /// The same for what is new: as the one who made it.
    fn covers(&self, process: &Seen, by_pid: &BTreeMap<i32, &Seen>) -> bool {
        let mut process = process;
        for _ in 0..GENERATIONS {
            if let Some(is_background) = self.is_background(process) {
                return is_background;
            }
            match by_pid.get(&process.parent) {
                Some(parent) => process = parent,
                None => return false,
            }
        }
        false
    }
}

impl Quiescence {
    pub(super) fn new(began: Instant, settle: Duration, before: Before) -> Self {
        let patience = settle * PATIENCE;
        Self::by(Rule::Told { patience }, began, before)
    }

    /// Of a turn that a hint began and none may come to end.
    pub(super) fn of_hint(began: Instant, timeout: Duration, before: Before) -> Self {
        Self::by(Rule::Rest(timeout), began, before)
    }

    /// Of an agent inside, and whatever it does.
    pub(super) fn of_inside(began: Instant, quiet: Duration, before: Before) -> Self {
        Self::by(Rule::Inside(quiet), began, before)
    }

    /// The program that began the turn may be an agent: so it counts as one once it has lived for
    /// longer than a command usually waits for a server.
    pub(super) fn with_inside(mut self, quiet: Duration) -> Self {
        self.inside = Some((self.began + quiet * AGE, quiet));
        self
    }

    /// From when on an agent inside counts.
    pub(super) fn inside_from(&self) -> Option<Instant> {
        self.inside.map(|(from, _)| from)
    }

    /// What was there before.
    pub(super) fn before(&self) -> &Before {
        &self.before
    }

    fn by(rule: Rule, began: Instant, before: Before) -> Self {
        Self {
            began,
            rule,
            before,
            inside: None,
            rested: None,
            waiting: None,
        }
    }

    /// For how long others may run, or print, beside one who waits for input; nothing if
    /// that does not matter.
    pub(super) fn patience(&self) -> Option<Duration> {
        match self.rule {
            Rule::Told { patience } => Some(patience),
            Rule::Rest(_) | Rule::Inside(_) => None,
        }
    }

    /// What a look means; `is_quiet`: nothing was typed or printed for the settle time.
    pub(super) fn looked(&mut self, now: Instant, seen: &[Seen], is_quiet: bool) -> Verdict {
        let of_turn = self.of_turn(seen);
        let is_told = matches!(self.rule, Rule::Told { .. });
        let inside = match self.rule {
            Rule::Inside(quiet) => Some(quiet),
            _ => self
                .inside
                .filter(|(from, _)| *from <= now)
                .map(|(_, quiet)| quiet),
        };
        let rest_for = match (self.rule, inside) {
            (Rule::Rest(rest_for), _) => Some(rest_for),
            _ if is_told && seen.iter().any(|process| process.reads) => Some(CONFIRM),
            (_, Some(quiet)) if waits_for_network(&of_turn) => {
                self.waiting = None;
                Some(quiet)
            }
            _ => None,
        };
        let Some(rest_for) = rest_for else {
            self.rested = None;
            self.waiting = None;
            return Verdict::Again(self.pause(now));
        };
        let waiting = now.duration_since(*self.waiting.get_or_insert(now));
        let is_over = self.patience().is_some_and(|patience| waiting >= patience);
        let is_busy = of_turn.iter().any(|process| process.runs || process.is_job);
        if !is_quiet || is_busy {
            self.rested = None;
            if is_over {
                return Verdict::Over(now);
            }
            return Verdict::Again(self.pause(now));
        }
        let progress = of_turn.iter().map(|p| (key(p), p.progress)).collect();
        let pause = match &self.rested {
            Some((since, before)) if *before == progress => {
                let rested = now.duration_since(*since);
                if rested >= rest_for {
                    return Verdict::Over(*since);
                }
                return Verdict::Again(rest_for - rested);
            }
            // Somebody wakes up ever so often.
            Some((since, _)) if is_over => return Verdict::Over(*since),
            Some(_) => rest_for.max(self.pause(now)),
            None => rest_for,
        };
        self.rested = Some((now, progress));
        Verdict::Again(pause)
    }

    /// All but background work.
    fn of_turn<'a>(&self, seen: &'a [Seen]) -> Vec<&'a Seen> {
        let by_pid: BTreeMap<i32, &Seen> = seen.iter().map(|p| (p.pid, p)).collect();
        let mut of_turn: Vec<&Seen> = seen.iter().collect();
        of_turn.retain(|process| !self.before.covers(process, &by_pid));
        of_turn
    }

    /// How far all but background work has run.
    pub(super) fn progress(&self, seen: &[Seen]) -> Progress {
        let of_turn = self.of_turn(seen).into_iter();
        of_turn.map(|p| (key(p), p.progress)).collect()
    }

    fn pause(&self, now: Instant) -> Duration {
        (now.duration_since(self.began) / SHARE).clamp(SOONEST, LATEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTLE: Duration = Duration::from_millis(100);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A process that sleeps: the second of its kind has run more.
    fn asleep(pid: i32, parent: i32, ran: u64) -> Seen {
        Seen {
            pid,
            parent,
            start: pid as u64 * 10,
            runs: false,
            progress: (ran, ran),
            reads: false,
            listens: false,
            awaits_network: false,
            is_job: false,
        }
    }

    fn awaiting_network(pid: i32, ran: u64) -> Seen {
        Seen {
            listens: true,
            awaits_network: true,
            ..asleep(pid, 0, ran)
        }
    }

    fn running(pid: i32, parent: i32) -> Seen {
        Seen {
            runs: true,
            ..asleep(pid, parent, 1)
        }
    }

    fn reading(pid: i32, ran: u64) -> Seen {
        Seen {
            reads: true,
            ..asleep(pid, 0, ran)
        }
    }

    fn turn(before: &[Seen], at_rest: Option<&Progress>) -> (Quiescence, Instant) {
        let now = Instant::now();
        let before = Before::of(before, at_rest);
        (Quiescence::new(now, SETTLE, before), now)
    }

    #[test]
    fn a_shell_that_reads_again_with_nothing_done_in_between_has_ended_the_turn() {
        let (mut turn, t) = turn(&[reading(1, 5)], None);
        let look = [reading(1, 9)];
        assert_eq!(
            turn.looked(t + SETTLE, &look, true),
            Verdict::Again(CONFIRM)
        );
        let second = t + SETTLE + CONFIRM;
        assert_eq!(turn.looked(second, &look, true), Verdict::Over(t + SETTLE));
    }

    #[test]
    fn a_command_under_way_holds_the_turn_open_however_quiet_it_is() {
        let (mut turn, t) = turn(&[reading(1, 5)], None);
        // The shell waits for `sleep 60`, both asleep.
        let look = [asleep(1, 0, 6), asleep(2, 1, 1)];
        for second in 1..60 {
            let verdict = turn.looked(t + ms(1000 * second), &look, true);
            assert!(
                matches!(verdict, Verdict::Again(_)),
                "{second}: {verdict:?}"
            );
        }
        assert_eq!(
            turn.looked(t + ms(60_000), &look, true),
            Verdict::Again(LATEST)
        );
    }

    #[test]
    fn a_pipeline_asleep_between_two_steps_is_found_out_by_the_second_look() {
        let (mut turn, t) = turn(&[reading(1, 5)], None);
        let look = |ran| [reading(1, 9), asleep(2, 1, ran)];
        assert_eq!(turn.looked(t, &look(1), true), Verdict::Again(CONFIRM));
        assert!(matches!(
            turn.looked(t + CONFIRM, &look(2), true),
            Verdict::Again(_)
        ));
        assert_eq!(
            turn.looked(t + ms(40), &look(2), true),
            Verdict::Over(t + CONFIRM)
        );
    }

    #[test]
    fn work_that_was_there_before_holds_nothing_open_and_neither_does_what_it_starts() {
        let before = [reading(1, 5), running(7, 3), asleep(3, 0, 1)];
        let (mut turn, t) = turn(&before, None);
        let look = [
            reading(1, 9),
            asleep(3, 0, 1),
            running(7, 3),
            running(8, 7),
            running(9, 8),
        ];
        assert_eq!(
            turn.looked(t + SETTLE, &look, true),
            Verdict::Again(CONFIRM)
        );
        let second = t + SETTLE + CONFIRM;
        assert_eq!(turn.looked(second, &look, true), Verdict::Over(t + SETTLE));
    }

    #[test]
    fn who_ran_while_nobody_told_it_anything_is_background_though_asleep_just_now() {
        let at_rest = progress(&[reading(1, 5), asleep(7, 0, 1), asleep(3, 0, 1)]);
        let now = [reading(1, 5), asleep(7, 0, 2), asleep(3, 0, 1)];
        let (mut turn, t) = turn(&now, Some(&at_rest));
        // 7 is; 3 is not, and neither is what it does now.
        let look = [reading(1, 9), running(7, 0), running(4, 3)];
        let with_3 = [look.as_slice(), &[asleep(3, 0, 1)]].concat();
        assert!(matches!(
            turn.looked(t + SETTLE, &with_3, true),
            Verdict::Again(pause) if pause != CONFIRM || turn.rested.is_none()
        ));
        let done = [reading(1, 9), running(7, 0), asleep(3, 0, 3)];
        assert_eq!(
            turn.looked(t + ms(200), &done, true),
            Verdict::Again(CONFIRM)
        );
        assert_eq!(
            turn.looked(t + ms(210), &done, true),
            Verdict::Over(t + ms(200))
        );
    }

    #[test]
    fn what_a_turn_leaves_in_the_background_holds_it_open_for_a_while_and_no_longer() {
        let (mut turn, t) = turn(&[reading(1, 5)], None);
        // `make &`, which even prints.
        let look = [reading(1, 9), running(2, 1)];
        for quiet in [true, false, true] {
            let verdict = turn.looked(t + SETTLE, &look, quiet);
            assert!(matches!(verdict, Verdict::Again(_)));
        }
        let late = t + SETTLE + turn.patience().unwrap();
        assert_eq!(turn.looked(late, &look, false), Verdict::Over(late));
    }

    #[test]
    fn a_command_in_a_window_inside_is_under_way_though_the_outer_program_reads() {
        let (mut turn, t) = turn(&[reading(1, 5)], None);
        let job = Seen {
            is_job: true,
            ..asleep(4, 3, 1)
        };
        let look = [reading(1, 9), asleep(3, 0, 1), job];
        for at in [100, 200, 300] {
            let verdict = turn.looked(t + ms(at), &look, true);
            assert!(matches!(verdict, Verdict::Again(_)), "{verdict:?}");
        }
    }

    #[test]
    fn a_program_that_was_started_by_the_turn_is_no_background_and_older_ones_are() {
        let now = Instant::now();
        let mut turn = Quiescence::new(now, SETTLE, Before::Start(50));
        // 3 started at 30, 6 at 60.
        let busy = [reading(7, 1), running(3, 0), running(6, 7)];
        let first = turn.looked(now + SETTLE, &busy, true);
        assert!(matches!(first, Verdict::Again(_)) && turn.rested.is_none());
        let done = [reading(7, 1), running(3, 0)];
        assert_eq!(
            turn.looked(now + ms(200), &done, true),
            Verdict::Again(CONFIRM)
        );
        assert_eq!(
            turn.looked(now + ms(210), &done, true),
            Verdict::Over(now + ms(200))
        );
    }

    #[test]
    fn a_turn_of_a_hint_ends_after_a_long_rest_whoever_reads_and_not_while_work_goes_on() {
        let t = Instant::now();
        let timeout = Duration::from_secs(30);
        let mut turn = Quiescence::of_hint(t, timeout, Before::Start(0));
        for second in [30, 60, 600] {
            let verdict = turn.looked(t + ms(1000 * second), &[running(2, 0)], true);
            assert_eq!(verdict, Verdict::Again(LATEST), "{second}");
        }
        let done = t + ms(601_000);
        let look = [reading(1, 1)];
        assert_eq!(turn.looked(done, &look, true), Verdict::Again(timeout));
        let half = turn.looked(done + timeout / 2, &look, true);
        assert_eq!(half, Verdict::Again(timeout / 2));
        let late = done + timeout;
        assert_eq!(turn.looked(late, &look, true), Verdict::Over(done));
    }

    #[test]
    fn an_agent_inside_that_waits_for_its_model_has_ended_its_turn_and_its_tool_has_not() {
        let t = Instant::now();
        let quiet = ms(1000);
        let mut turn = Quiescence::of_inside(t, quiet, Before::Start(0));
        // It waits for `sleep 5` of its own, with the connection kept open.
        let tool = [awaiting_network(2, 1), asleep(3, 2, 1)];
        for at in [0, 2000, 4000] {
            let verdict = turn.looked(t + ms(at), &tool, true);
            assert!(matches!(verdict, Verdict::Again(_)) && turn.rested.is_none());
        }
        let model = [awaiting_network(2, 5)];
        assert_eq!(
            turn.looked(t + ms(5000), &model, true),
            Verdict::Again(quiet)
        );
        let woke = [awaiting_network(2, 6)];
        assert_eq!(
            turn.looked(t + ms(6000), &woke, true),
            Verdict::Again(quiet)
        );
        let over = Verdict::Over(t + ms(6000));
        assert_eq!(turn.looked(t + ms(7000), &woke, true), over);
    }

    #[test]
    fn a_command_that_waits_for_a_server_is_no_agent_until_it_has_lived_for_long() {
        let now = Instant::now();
        let quiet = ms(1000);
        let mut turn = Quiescence::new(now, SETTLE, Before::Start(0)).with_inside(quiet);
        let waits = [awaiting_network(2, 1)];
        for at in [1000, 5000, 9999] {
            let verdict = turn.looked(now + ms(at), &waits, true);
            assert!(matches!(verdict, Verdict::Again(_)) && turn.rested.is_none());
        }
        let from = now + ms(10_000);
        assert_eq!(turn.looked(from, &waits, true), Verdict::Again(quiet));
        assert_eq!(turn.looked(from + quiet, &waits, true), Verdict::Over(from));
    }

    #[test]
    fn parents_that_go_in_circles_are_followed_only_so_far() {
        let (mut turn, t) = turn(&[reading(1, 5)], None);
        let look = [reading(1, 9), running(5, 6), running(6, 5)];
        assert!(matches!(turn.looked(t, &look, true), Verdict::Again(_)));
    }
}
