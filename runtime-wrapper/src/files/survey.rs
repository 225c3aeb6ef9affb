// SPDX-License-Identifier: Apache-2.0
//! Looking at everything in a root at once, by several threads.
//!
//! ```text
//!  directory --list or recall--> pieces of names --stat each--> as it was: nothing to do
//!      ^                                              |
//!      +----------- directories among them -----------+--> examined, found
//! ```
//! Nearly all of it is one `statx` for each entry, which the kernel answers as fast as
//! there are processors. So directories, and pieces of large ones, are handed out to whoever
//! is free; further threads are started once there are many entries. A directory that is as
//! the index has it has the names of before: it is not listed again, unless something of it
//! was torn then. What is as it was in it costs no more than that look: no path is made,
//! nothing is copied.

use std::{
    collections::HashSet,
    ffi::{CStr, CString},
    ops::Range,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use super::{
    beneath::{Stat, split},
    change::{Found, Linked},
    crew::Crew,
    examine::{Comparison, Entry, Examiner},
    index::{Dir, Index, Named},
    node::Node,
    walk::{PATH_BYTES, WalkError, enter, is_as_seen, join, names, stat_of},
};

/// Entries of one directory that are handed out together.
const PIECE: usize = 512;

/// From so many entries on, one thread is not enough.
const MANY: usize = 2000;

/// More would take the processors from sandboxes, and bring little.
const THREADS: usize = 4;

/// What there is in a root.
pub(crate) struct Surveyed {
    pub(crate) index: Index,
    pub(crate) findings: Findings,
}

/// What one thread, or all of them, came upon. In no order.
#[derive(Default)]
pub(crate) struct Findings {
    parts: Vec<Part>,
    /// What was looked at.
    pub(crate) found: Vec<Found>,
    /// Each name of an inode that has several.
    pub(crate) linked: Vec<Linked>,
    pub(crate) torn: Vec<Vec<u8>>,
    pub(crate) mapped: HashSet<u64>,
    /// Of the inodes that are known to have changed, those that were come upon.
    pub(crate) met: HashSet<u64>,
}

impl Findings {
    fn add(&mut self, other: Self) {
        self.parts.extend(other.parts);
        self.found.extend(other.found);
        self.linked.extend(other.linked);
        self.torn.extend(other.torn);
        self.mapped.extend(other.mapped);
        self.met.extend(other.met);
    }
}

/// Looks at everything, or at what may have changed.
pub(crate) fn survey(with: Comparison<'_>) -> Result<Surveyed, WalkError> {
    let root = with.scanner.root();
    let stat = Stat::of(root).map_err(|errno| WalkError::io("stat", b"", errno))?;
    let survey = Survey {
        with,
        mount: stat.mount,
        budget: AtomicUsize::new(PATH_BYTES),
        seen: AtomicUsize::new(match with.narrow {
            Some(_) => 0,
            None => with.index.len(),
        }),
        crew: Crew::new(),
    };
    thread::scope(|scope| {
        let mut own = Worker::new(&survey)?;
        let root = own.root(stat)?;
        let mut helpers: Vec<Helper<'_>> = Vec::new();
        let mut findings = own.run(|| {
            if helpers.is_empty() && survey.is_large() {
                let processors = thread::available_parallelism().map_or(1, usize::from);
                let help = || Worker::new(&survey)?.run(|| ());
                // With fewer, or none, where there is no room for a thread.
                let helper = |_| thread::Builder::new().spawn_scoped(scope, help).ok();
                helpers.extend((1..processors.min(THREADS)).map_while(helper));
            }
        });
        for helper in helpers {
            let joined = helper.join();
            let other = joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            match (&mut findings, other) {
                (Ok(findings), Ok(other)) => findings.add(other),
                (Ok(_), Err(error)) => findings = Err(error),
                (Err(_), _) => {}
            }
        }
        let mut findings = findings?;
        let parts = std::mem::take(&mut findings.parts);
        let unless_found = with.narrow.map(|_| with.index);
        let mut index = Index::of_parts(root, parts, unless_found);
        for torn in &findings.torn {
            index.incomplete.insert(torn.clone());
            index.incomplete.insert(split(torn).0.to_vec());
        }
        Ok(Surveyed { index, findings })
    })
}

/// Entries of one directory.
pub(crate) struct Part {
    pub(crate) dir: Arc<[u8]>,
    pub(crate) is: Names,
}

/// What is known of them.
pub(crate) enum Names {
    /// They are those of before, but for these, by position.
    AsBefore(Arc<Dir>, Vec<(usize, Option<Arc<Node>>)>),
    /// Listed anew, or some of them.
    Listed(Vec<Named>),
}

enum Job {
    Enter(Place),
    Look(Arc<Listing>, Range<usize>),
}

/// A directory to be looked at.
struct Place {
    path: Arc<[u8]>,
    /// As it was seen in the one that it is in.
    stat: Stat,
    /// Whether lower directories are merged with it.
    merged: bool,
    /// Nothing can have come or gone in it.
    as_before: bool,
}

/// One that was entered.
struct Listing {
    place: Place,
    old: Option<Arc<Dir>>,
    /// Nothing where they are those of `old`.
    names: Option<Vec<CString>>,
    /// Of those of `old`, by place, the ones to look at; nothing for all.
    only: Option<Vec<usize>>,
}

impl Listing {
    fn len(&self) -> usize {
        match (&self.names, &self.only, &self.old) {
            (Some(names), ..) => names.len(),
            (None, Some(only), _) => only.len(),
            (None, None, Some(old)) => old.entries().len(),
            (None, None, None) => 0,
        }
    }

    /// Its place in the directory, its name, and what was there before.
    fn entry(&self, at: usize) -> Option<(usize, &CStr, Option<&Arc<Node>>)> {
        match (&self.names, &self.old) {
            (Some(names), old) => {
                let name = names.get(at)?;
                Some((at, name, old.as_ref().and_then(|old| old.get(name))))
            }
            (None, old) => {
                let at = match &self.only {
                    Some(only) => *only.get(at)?,
                    None => at,
                };
                let entry = old.as_ref()?.entries().get(at)?;
                Some((at, &entry.name, Some(&entry.node)))
            }
        }
    }
}

/// What all threads share.
struct Survey<'a> {
    with: Comparison<'a>,
    mount: u64,
    /// Bytes of paths that may still be seen.
    budget: AtomicUsize,
    /// How many entries there are at least.
    seen: AtomicUsize,
    crew: Crew<Job>,
}

/// A thread that helps.
type Helper<'s> = thread::ScopedJoinHandle<'s, Result<Findings, WalkError>>;

impl Survey<'_> {
    /// Whether more threads are wanted than the first one.
    fn is_large(&self) -> bool {
        self.seen.load(Ordering::Relaxed) >= MANY && self.crew.waiting() > 1
    }
}

/// One thread, and what it found.
struct Worker<'s> {
    survey: &'s Survey<'s>,
    examiner: Examiner<'s>,
    findings: Findings,
    jobs: Vec<Job>,
}

impl<'s> Worker<'s> {
    fn new(survey: &'s Survey<'s>) -> Result<Self, WalkError> {
        Ok(Self {
            survey,
            examiner: Examiner::new(survey.with)?,
            findings: Findings::default(),
            jobs: Vec::new(),
        })
    }

    /// Works until there is nothing left. `more` is called before each piece.
    fn run(mut self, mut more: impl FnMut()) -> Result<Findings, WalkError> {
        while let Some((job, busy)) = self.survey.crew.next() {
            more();
            let done = match job {
                Job::Enter(place) => self.enter(place),
                Job::Look(listing, range) => self.look_again(&listing, range),
            };
            self.survey.crew.give(&mut self.jobs);
            if done.is_err() {
                self.survey.crew.stop();
            }
            drop(busy);
            done?;
        }
        self.findings.mapped = self.examiner.mapped;
        Ok(self.findings)
    }

    /// Looks at the root itself. Where nothing but its content is known, all of it is new.
    fn root(&mut self, stat: Stat) -> Result<Option<Arc<Node>>, WalkError> {
        let index = self.survey.with.index;
        let old = index.get(b"");
        let entry = Entry {
            dir: self.survey.with.scanner.root(),
            name: c".",
            path: b"",
            stat,
            merged: true,
            old,
        };
        let (node, as_before) = match old {
            Some(old) if self.examiner.is_as_it_was(&stat, old, Vec::new) => (old.clone(), true),
            _ => match self.examine(&entry)? {
                Some(node) => (node, false),
                None => return Ok(None),
            },
        };
        self.meet(&stat);
        self.jobs.push(Job::Enter(Place {
            path: Arc::from([]),
            stat,
            merged: !node.hides_lower,
            as_before,
        }));
        self.survey.crew.give(&mut self.jobs);
        Ok(Some(node))
    }

    fn enter(&mut self, place: Place) -> Result<(), WalkError> {
        let with = &self.survey.with;
        let Some(dir) = enter(with.scanner.root(), &place.path, &place.stat)? else {
            self.findings.torn.push(place.path.to_vec());
            return Ok(());
        };
        let old = with.index.dir(&place.path).cloned();
        let is_whole = !with.index.incomplete.contains(&*place.path);
        let names = match place.as_before && old.is_some() && is_whole {
            true => None,
            false => Some(names(dir.as_fd(), &place.path)?),
        };
        let only = match (&names, with.narrow) {
            (None, Some(narrow)) => Some(narrow.places(&place.path)),
            _ => None,
        };
        let listing = Listing {
            place,
            old,
            names,
            only,
        };
        let len = listing.len();
        if len <= PIECE {
            return self.look(&listing, 0..len, dir.as_fd());
        }
        let listing = Arc::new(listing);
        self.jobs.extend((PIECE..len).step_by(PIECE).map(|start| {
            let range = start..len.min(start + PIECE);
            Job::Look(listing.clone(), range)
        }));
        self.survey.crew.give(&mut self.jobs);
        self.look(&listing, 0..PIECE, dir.as_fd())
    }

    /// At a further piece of a large directory.
    fn look_again(&mut self, listing: &Listing, range: Range<usize>) -> Result<(), WalkError> {
        let place = &listing.place;
        let root = self.survey.with.scanner.root();
        match enter(root, &place.path, &place.stat)? {
            Some(dir) => self.look(listing, range, dir.as_fd()),
            None => {
                self.findings.torn.push(place.path.to_vec());
                Ok(())
            }
        }
    }

    /// Looks at some of a directory's entries.
    fn look(
        &mut self,
        listing: &Listing,
        range: Range<usize>,
        dir: BorrowedFd<'_>,
    ) -> Result<(), WalkError> {
        let place = &listing.place;
        let survey = self.survey;
        let is_recalled = listing.names.is_none();
        let (mut others, mut listed) = (Vec::new(), Vec::new());
        let mut bytes = 0;
        survey.seen.fetch_add(range.len(), Ordering::Relaxed);
        for at in range {
            let Some((at, name, old)) = listing.entry(at) else {
                continue;
            };
            let path = || join(&place.path, name.to_bytes());
            bytes += place.path.len() + 1 + name.count_bytes();
            let node = match stat_of(dir, name, path)? {
                None => None,
                Some(stat) => self.entry(place, dir, name, stat, old)?,
            };
            match (node, old) {
                (Some(node), Some(old)) if is_recalled && Arc::ptr_eq(&node, old) => {}
                (node, _) if is_recalled => others.push((at, node)),
                (Some(node), _) => listed.push(Named {
                    name: name.to_owned(),
                    node,
                }),
                (None, _) => {}
            }
        }
        let budget = survey.budget.fetch_sub(bytes, Ordering::Relaxed);
        if budget < bytes || budget > PATH_BYTES {
            return Err(WalkError::too_large(&place.path));
        }
        if !is_as_seen(dir, &place.path, &place.stat)? {
            self.findings.torn.push(place.path.to_vec());
        }
        let is = match (&listing.names, &listing.old) {
            (None, Some(old)) => Names::AsBefore(old.clone(), others),
            _ => Names::Listed(listed),
        };
        let dir = place.path.clone();
        self.findings.parts.push(Part { dir, is });
        Ok(())
    }

    /// What is there now; nothing if that cannot be told.
    fn entry(
        &mut self,
        place: &Place,
        dir: BorrowedFd<'_>,
        name: &CStr,
        stat: Stat,
        old: Option<&Arc<Node>>,
    ) -> Result<Option<Arc<Node>>, WalkError> {
        let path = || join(&place.path, name.to_bytes());
        if stat.is_mount_point(self.survey.mount) {
            let known = old.filter(|old| old.mount_point && old.stat.is_dir() == stat.is_dir());
            if let Some(known) = known {
                return Ok(Some(known.clone()));
            }
            let node = Arc::new(Node::mount_point(&stat));
            self.findings.found.push(Found {
                path: path(),
                over: None,
                old: old.cloned(),
            });
            return Ok(Some(node));
        }
        let known = old.filter(|old| self.examiner.is_as_it_was(&stat, old, path));
        let node = match known {
            Some(old) => {
                if old.is_unread() {
                    // Nobody knows yet what is in it.
                    self.findings.found.push(Found {
                        path: path(),
                        over: None,
                        old: Some(old.clone()),
                    });
                }
                old.clone()
            }
            None => {
                let entry = Entry {
                    dir,
                    name,
                    path: &path(),
                    stat,
                    merged: place.merged,
                    old,
                };
                match self.examine(&entry)? {
                    Some(node) => node,
                    None => return Ok(None),
                }
            }
        };
        self.meet(&stat);
        let narrow = self.survey.with.narrow;
        if stat.is_dir() {
            if known.is_some() && narrow.is_some_and(|narrow| !narrow.leads_on(&path())) {
                return Ok(Some(node));
            }
            self.jobs.push(Job::Enter(Place {
                path: path().into(),
                stat,
                merged: place.merged && !node.hides_lower,
                as_before: known.is_some(),
            }));
        } else if stat.nlink > 1 {
            self.findings.linked.push(Linked {
                path: path(),
                inode: stat.inode(),
            });
        }
        Ok(Some(node))
    }

    fn meet(&mut self, stat: &Stat) {
        let narrow = self.survey.with.narrow;
        if narrow.is_some_and(|narrow| narrow.is_touched(stat.ino)) {
            self.findings.met.insert(stat.ino);
        }
    }

    fn examine(&mut self, entry: &Entry<'_>) -> Result<Option<Arc<Node>>, WalkError> {
        let Some((node, over)) = self.examiner.look(entry)? else {
            self.findings.torn.push(entry.path.to_vec());
            return Ok(None);
        };
        self.findings.found.push(Found {
            path: entry.path.to_vec(),
            over,
            old: entry.old.cloned(),
        });
        Ok(Some(Arc::new(node)))
    }
}
