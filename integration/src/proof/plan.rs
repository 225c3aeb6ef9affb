// SPDX-License-Identifier: Apache-2.0

//! What turns are made of: operations of the agent (`integration/agent`) on few names, so
//! that they meet, and so that most of them find something to work on.

use std::collections::BTreeMap;

use super::{chance::Chance, outside::Outside};

/// A file of the image, some of the upper directory, and some in memory. Those of the image
/// in which runc looks users up are left alone: with a FIFO there, no exec would start.
const FILES: [&str; 11] = [
    "/etc/hosts",
    "/root/a",
    "/root/b",
    "/root/c",
    "/root/d/a",
    "/root/d/b",
    "/root/e/a",
    "/tmp/a",
    "/dev/shm/a",
    "/dev/shm/b",
    "/run/a",
];
/// Links of the image, and names for what is no file.
const OTHERS: [&str; 5] = ["/bin/vi", "/bin/yes", "/root/x", "/root/d/x", "/dev/shm/x"];
const DIRECTORIES: [&str; 7] = [
    "/root/d",
    "/root/e",
    "/root/f",
    "/tmp/t",
    "/dev/shm/d",
    "/run/d",
    "/var/d",
];
/// Names that only one turn uses.
const SHORT_LIVED: [&str; 4] = ["/root/t", "/tmp/z", "/dev/shm/t", "/etc/t"];
const SERVERS: [&str; 3] = ["one", "two", "three"];

/// An operation in the words of the agent.
pub type Operation = Vec<String>;

/// One turn.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// What the host does to the sandbox before.
    pub outside: Vec<Outside>,
    /// Each exec's operations, in parts that go on at the same time. All execs overlap.
    pub execs: Vec<Vec<Vec<Operation>>>,
}

impl Plan {
    /// One exec that does these.
    pub fn simple(operations: Vec<Operation>) -> Self {
        Self {
            outside: Vec::new(),
            execs: vec![vec![operations]],
        }
    }

    /// The words of one exec.
    pub fn words(&self, exec: usize) -> Vec<String> {
        let parts = self.execs[exec].iter().map(|part| {
            let operations: Vec<String> = part.iter().map(|words| words.join(" ")).collect();
            operations.join(" , ")
        });
        let line = parts.collect::<Vec<_>>().join(" | ");
        line.split(' ').map(str::to_owned).collect()
    }
}

impl From<&str> for Plan {
    /// One exec that does this one thing.
    fn from(operation: &str) -> Self {
        Self::simple(vec![words(operation)])
    }
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for outside in &self.outside {
            write!(f, "outside: {outside:?}; ")?;
        }
        let lines: Vec<String> = (0..self.execs.len())
            .map(|exec| self.words(exec).join(" "))
            .collect();
        f.write_str(&lines.join(" || "))
    }
}

#[derive(Clone, Copy)]
enum Shape {
    Looks,
    NetsOut,
    Files,
    Processes,
    Parts,
    Execs,
}

const SHAPES: [(u64, Shape); 6] = [
    (13, Shape::Looks),
    (15, Shape::NetsOut),
    (44, Shape::Files),
    (18, Shape::Processes),
    (5, Shape::Parts),
    (5, Shape::Execs),
];

/// Makes one turn after the other.
#[derive(Clone, Debug)]
pub struct Planner {
    chance: Chance,
    /// Servers that should be there, and what they do of themselves.
    servers: BTreeMap<&'static str, &'static str>,
}

fn words(text: &str) -> Operation {
    text.split(' ').map(str::to_owned).collect()
}

impl Planner {
    /// The turns of a seed.
    pub fn new(seed: u64) -> Self {
        Self {
            chance: Chance::new(seed),
            servers: BTreeMap::new(),
        }
    }

    /// What there is to begin with.
    pub fn first() -> Plan {
        let mut operations = vec![];
        for dir in &DIRECTORIES[..2] {
            operations.push(words(&format!("mkdir {dir}")));
        }
        for (seed, file) in FILES.iter().enumerate().skip(1) {
            operations.push(words(&format!("write {file} {seed} 3000")));
        }
        Plan::simple(operations)
    }

    /// The next one.
    pub fn next_turn(&mut self) -> Plan {
        // Those that never rest do not stay long: with them no turn is without a change.
        let restless = self.servers.iter().find(|(_, role)| **role != "sits");
        let restless = restless.map(|(name, _)| *name);
        if let Some(name) = restless
            && self.chance.once_in(3)
        {
            self.servers.remove(name);
            let kill = vec![words("rest 20000"), words(&format!("kill {name}"))];
            return Plan::simple(kill);
        }
        let mut plan = match self.chance.weighted(&SHAPES) {
            Shape::Looks => self.several(1..4, Self::look),
            Shape::NetsOut => self.several(1..3, Self::nets_out),
            Shape::Files => self.several(1..5, |planner| vec![planner.on_files()]),
            Shape::Processes => self.processes(),
            Shape::Parts => {
                let parts =
                    (0..self.chance.within(2..4)).map(|_| vec![self.on_files(), self.on_files()]);
                Plan {
                    outside: Vec::new(),
                    execs: vec![parts.collect()],
                }
            }
            Shape::Execs => {
                let count = self.chance.within(2..4);
                let execs = (0..count).map(|who| {
                    let meet = words(&format!("meet {who} {count}"));
                    vec![vec![meet, self.on_files(), self.on_files()]]
                });
                Plan {
                    outside: Vec::new(),
                    execs: execs.collect(),
                }
            }
        };
        if self.chance.once_in(12) {
            plan.outside.push(self.outside());
        }
        // It moves in each turn.
        if restless.is_some() {
            plan.execs[0][0].push(words("rest 20000"));
        }
        plan
    }

    fn several(
        &mut self,
        count: std::ops::Range<u64>,
        mut make: impl FnMut(&mut Self) -> Vec<Operation>,
    ) -> Plan {
        let count = self.chance.within(count);
        Plan::simple((0..count).flat_map(|_| make(self)).collect())
    }

    fn file(&mut self) -> &'static str {
        self.chance.of(&FILES)
    }

    fn name(&mut self) -> &'static str {
        if self.chance.once_in(5) {
            self.chance.of(&OTHERS)
        } else {
            self.file()
        }
    }

    /// A file, a link or a directory.
    fn anything(&mut self) -> &'static str {
        if self.chance.once_in(4) {
            self.chance.of(&DIRECTORIES)
        } else {
            self.name()
        }
    }

    fn size(&mut self) -> u64 {
        match self.chance.within(0..10) {
            0 => 0,
            1 => 60_000,
            _ => self.chance.within(1..5000),
        }
    }

    fn seed(&mut self) -> u64 {
        self.chance.within(0..1_000_000)
    }

    /// Nothing of it is a change.
    fn look(&mut self) -> Vec<Operation> {
        let file = self.anything();
        let seed = self.seed();
        let one = match self.chance.within(0..7) {
            0 => "nothing".to_owned(),
            1 => "children 3".to_owned(),
            2 => format!("private {file} {seed} 1"),
            3 => format!("memfd {seed} 5000"),
            4 => format!("unnamed /root {seed} 100 -"),
            5 => format!("touched {file}"),
            _ => format!("look {file}"),
        };
        vec![words(&one)]
    }

    /// A change and its way back; where a step fails, something may be left.
    fn nets_out(&mut self) -> Vec<Operation> {
        let file = self.file();
        let other = self.chance.of(&SHORT_LIVED);
        let seed = self.seed();
        let all = match self.chance.within(0..7) {
            0 => vec![
                format!("write {other} {seed} 100"),
                format!("unlink {other}"),
            ],
            1 => vec![format!("mkdir {other}"), format!("rmdir {other}")],
            2 => vec![
                format!("rename {file} {other} 1"),
                format!("rename {other} {file} 1"),
            ],
            3 => vec![format!("link {file} {other}"), format!("unlink {other}")],
            4 => vec![format!("restored {file}")],
            5 => vec![
                format!("setxattr {file} user.short {seed}"),
                format!("removexattr {file} user.short"),
            ],
            _ => vec![
                format!("mkdir {other}"),
                format!("shm {other}/shm {seed}"),
                format!("rename {other}/shm {other}/again 0"),
                format!("unlink {other}/again"),
                format!("rmdir {other}"),
            ],
        };
        all.iter().map(|line| words(line)).collect()
    }

    fn on_files(&mut self) -> Operation {
        let (file, to) = (self.name(), self.name());
        let any = self.anything();
        let dir = self.chance.of(&DIRECTORIES);
        let (seed, size) = (self.seed(), self.size());
        let mode = self.chance.of(&[0o600_u32, 0o644, 0o755, 0o4711, 0o444]);
        let attribute = self.chance.of(&["user.a", "user.b", "security.b"]);
        words(&match self.chance.within(0..41) {
            0..=2 => format!("write {file} {seed} {size}"),
            3 => format!("append {file} {seed} {size}"),
            4 => format!("overwrite {file} {seed} {size} {}", seed % 3000),
            5 => format!("truncate {file} {size}"),
            6 => format!("ftruncate {file} {size}"),
            7 => format!(
                "fallocate {file} {} {} 2000",
                [0, 1, 3, 16][(seed % 4) as usize],
                size % 3000
            ),
            8 => format!("copyrange {file} {to} {size}"),
            9 => format!("sendfile {file} {to} {size}"),
            10 => format!("splice {file} {seed} {size}"),
            11 => format!("unnamed /root {seed} {size} {to}"),
            12..=13 => format!("rename {file} {to} 0"),
            14 => format!("rename {file} {to} 1"),
            15 => format!("rename {file} {to} 2"),
            16 => format!("rename {dir} {} {}", self.chance.of(&DIRECTORIES), seed % 3),
            17..=18 => format!("unlink {file}"),
            19 => format!("rmdir {dir}"),
            20 => format!("mkdir {dir}"),
            21 => format!("link {file} {to}"),
            22 => format!("symlink {to} {file}"),
            23 => format!("mknod {file} {} 0", 0o010_644),
            // /dev/null.
            24 => format!("mknod {file} {} 259", 0o020_666),
            25 => format!("socket {file}"),
            26 => format!("chmod {any} {mode}"),
            27 => format!("fchmodat2 {any} {mode}"),
            28 => format!("chown {any} {} {}", seed % 3, seed % 2),
            29 => format!("times {any} {} {seed}", 1_700_000_000 + seed),
            30 => format!("setxattr {any} {attribute} {seed}"),
            31 => format!("removexattr {any} {attribute}"),
            32 => format!("acl {any} {}", seed % 8),
            33 => format!("map {file} {seed} {size}"),
            34 => format!("uring {file} {seed} {size}"),
            35 => format!("aio {file} {seed} {size}"),
            36 => format!("write32 {file} {seed} {size}"),
            37 => format!("unlink32 {file}"),
            38 => format!("chmod32 {file} {mode}"),
            39 => format!("shm {file} {seed}"),
            _ => format!("restored {file}"),
        })
    }

    fn outside(&mut self) -> Outside {
        Outside::by_chance(&mut self.chance, &FILES)
    }

    fn processes(&mut self) -> Plan {
        let name = self.chance.of(&SERVERS);
        let mut operations = Vec::new();
        match self.servers.get(name).copied() {
            None => {
                let role =
                    self.chance
                        .weighted(&[(8, "sits"), (1, "wakes"), (1, "ticks"), (1, "writes")]);
                self.servers.insert(name, role);
                let file =
                    ["/root/c", "/dev/shm/b", "/root/d/b"][self.chance.within(0..3) as usize];
                operations.push(words(&format!("spawn {name} {role} {file}")));
                if role != "sits" {
                    operations.push(words("rest 20000"));
                }
            }
            Some(_) if self.chance.once_in(5) => {
                self.servers.remove(name);
                operations.push(words(&format!("kill {name}")));
            }
            Some(_) => {
                let told = self.chance.of(&[
                    "count", "nothing", "grow", "hold", "store", "store", "write", "memfd", "open",
                    "block", "unblock", "umask", "limit", "nice", "cwd", "fork", "rename",
                ]);
                operations.push(words(&format!("tell {name} {told}")));
            }
        }
        if self.chance.once_in(3) {
            let file = self.on_files();
            operations.push(file);
        }
        Plan::simple(operations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_turns_and_another_others() {
        let turns = |seed| {
            let mut planner = Planner::new(seed);
            let turns = (0..200).map(|_| planner.next_turn().to_string());
            turns.collect::<Vec<_>>()
        };
        assert_eq!(turns(7), turns(7));
        assert_ne!(turns(7), turns(8));
    }
}
