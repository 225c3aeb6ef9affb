// SPDX-License-Identifier: Apache-2.0

//! A sandbox's journal: what happened, in order, only ever appended to.
//!
//! ```text
//! header  "CRABJRNL" version:u32 0:u32
//! record  magic:[ff 'C' 'J' fe] len:u32 check:[16] json:[len]        (n times)
//! ```
//!
//! `check` is the front of the json's blake3. A tail that is no whole record
//! was being written when its writer died: readers pass over it, the next
//! writer cuts it off. A damaged record in the middle is passed over as well
//! and counted, but never takes those after it along.

use std::{
    fs::File,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

use crate::{
    durable,
    error::{FileError, ReadError, WriteError},
    record::JournalRecord,
    version,
};

const MAGIC: &[u8; 8] = b"CRABJRNL";
const VERSION: u32 = 1;
pub(crate) const HEADER_LEN: usize = 16;
/// Not UTF-8, so that no json has it.
const RECORD_MAGIC: [u8; 4] = [0xff, b'C', b'J', 0xfe];
pub(crate) const CHECK_LEN: usize = 16;
/// Where in a record it is.
pub(crate) const CHECK_AT: usize = 4 + 4;
const RECORD_HEADER_LEN: usize = CHECK_AT + CHECK_LEN;
/// Largest record.
const MAX_RECORD: usize = 1 << 20;
/// Largest journal that is read.
const MAX_JOURNAL: u64 = 4 << 30;

/// Whether an append returns only when the record is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// It waits for the disk: the record survives a power cut.
    Synced,
    /// It does not: the record survives the death of any process.
    Lazy,
}

/// What a journal says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Journal {
    /// Its records, oldest first.
    pub records: Vec<JournalRecord>,
    /// How many damaged stretches lie between them.
    pub damaged: usize,
}

/// The record at `at` and where it ends.
fn record_at(bytes: &[u8], at: usize) -> Option<(JournalRecord, usize)> {
    let (head, rest) = bytes.get(at..)?.split_first_chunk::<RECORD_HEADER_LEN>()?;
    let rest_of_head = head.strip_prefix(&RECORD_MAGIC)?;
    let (len, check) = rest_of_head.split_first_chunk::<4>()?;
    let len = u32::from_le_bytes(*len) as usize;
    let json = rest.get(..len).filter(|_| len <= MAX_RECORD)?;
    if blake3::hash(json).as_bytes()[..CHECK_LEN] != *check {
        return None;
    }
    // Whole, but not understood: of a later version.
    let record = serde_json::from_slice(json).unwrap_or(JournalRecord::Unknown);
    Some((record, at + RECORD_HEADER_LEN + len))
}

fn header() -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header
}

/// Whether the journal's maker, or the machine, died before its header was on
/// disk. Making one does not wait for the disk: a container's start would.
fn is_torn_header(bytes: &[u8]) -> bool {
    let cut_off = bytes.len() < HEADER_LEN && header().starts_with(bytes);
    cut_off || bytes.iter().all(|byte| *byte == 0)
}

/// Parses a journal, and tells where its last whole record ends.
fn parse(path: &Path, bytes: &[u8]) -> Result<(Journal, usize), ReadError> {
    parse_from(path, bytes, HEADER_LEN)
}

/// The same of what lies behind the record that ends at `from`.
fn parse_from(path: &Path, bytes: &[u8], from: usize) -> Result<(Journal, usize), ReadError> {
    let damaged = |why: &str| ReadError::Damaged {
        path: path.to_owned(),
        why: why.to_owned(),
    };
    if is_torn_header(bytes) {
        return Ok((Journal::default(), 0));
    }
    let Some((header, _)) = bytes.split_first_chunk::<HEADER_LEN>() else {
        return Err(damaged("it is too short"));
    };
    let Some((version, _)) = header
        .strip_prefix(MAGIC)
        .and_then(|rest| rest.split_first_chunk())
    else {
        return Err(damaged("it is no journal"));
    };
    let version = u32::from_le_bytes(*version);
    version::check(path, version, VERSION)?;
    let mut journal = Journal::default();
    let (mut end, mut at) = (from, from);
    while at < bytes.len() {
        if let Some((record, next)) = record_at(bytes, at) {
            if at > end {
                journal.damaged += 1;
            }
            journal.records.push(record);
            (at, end) = (next, next);
        } else {
            // To the next place where a record may begin.
            let ahead = bytes[at + 1..]
                .windows(RECORD_MAGIC.len())
                .position(|window| window == RECORD_MAGIC);
            at = ahead.map_or(bytes.len(), |ahead| at + 1 + ahead);
        }
    }
    Ok((journal, end))
}

/// Reads the journal at `path`; none is an empty one.
pub(crate) fn read(path: &Path) -> Result<Journal, ReadError> {
    match durable::read(path, MAX_JOURNAL)? {
        Some(bytes) => Ok(parse(path, &bytes)?.0),
        None => Ok(Journal::default()),
    }
}

/// The records that lie behind one that ended at `place`; nothing if the journal is shorter than
/// that by now.
pub(crate) fn since(path: &Path, place: u64) -> Result<Option<Vec<JournalRecord>>, ReadError> {
    let bytes = durable::read(path, MAX_JOURNAL)?.unwrap_or_default();
    match usize::try_from(place) {
        Ok(place) if (HEADER_LEN..=bytes.len()).contains(&place) => {
            Ok(Some(parse_from(path, &bytes, place)?.0.records))
        }
        _ => Ok(None),
    }
}

/// A whole record, and where it is.
pub(crate) struct Frame {
    pub(crate) record: JournalRecord,
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) check: [u8; CHECK_LEN],
}

/// Whether a journal of this length has its header by now.
pub(crate) fn has_header(path: &Path, file: &File, len: u64) -> Result<bool, ReadError> {
    let mut head = vec![0; len.min(HEADER_LEN as u64) as usize];
    file.read_exact_at(&mut head, 0)
        .map_err(FileError::of("read", path))?;
    // Its version, and whether it is a journal at all.
    parse(path, &head)?;
    Ok(!is_torn_header(&head))
}

/// Hands on the whole records between two places, of which the first is where one begins, or was
/// expected to. Tells where the last of them ends. Never has more than [`SIGHT`] of it in memory.
pub(crate) fn frames(
    path: &Path,
    file: &File,
    from: u64,
    to: u64,
    each: &mut dyn FnMut(Frame),
) -> Result<u64, ReadError> {
    let (mut place, mut end) = (from, from);
    while place < to {
        let mut bytes = vec![0; (to - place).min(SIGHT as u64) as usize];
        if let Err(error) = file.read_exact_at(&mut bytes, place) {
            // Its end was cut off meanwhile.
            if error.kind() == std::io::ErrorKind::UnexpectedEof {
                break;
            }
            return Err(FileError::of("read", path)(error).into());
        }
        let mut at = 0;
        while at < bytes.len() {
            let Some((record, next)) = record_at(&bytes, at) else {
                let ahead = bytes[at + 1..]
                    .windows(RECORD_MAGIC.len())
                    .position(|window| window == RECORD_MAGIC);
                at = ahead.map_or(bytes.len(), |ahead| at + 1 + ahead);
                continue;
            };
            let check = bytes[at + CHECK_AT..].first_chunk();
            end = place + next as u64;
            each(Frame {
                record,
                begin: place + at as u64,
                end,
                check: check.copied().unwrap_or_default(),
            });
            at = next;
        }
        if place + bytes.len() as u64 == to {
            break;
        }
        // What begins in its last part is seen whole from there.
        let seen = place + (bytes.len() - MAX_RECORD - RECORD_HEADER_LEN) as u64;
        place = end.max(seen);
    }
    Ok(end)
}

/// Where the last whole record of a journal of this length ends, looked for from its end; and where
/// that begins, with its check. Nothing if there is none.
pub(crate) fn end(file: &File, len: u64, last: &mut Option<(u64, [u8; CHECK_LEN])>) -> Option<u64> {
    let path = Path::new("");
    for sight in [64 << 10, SIGHT as u64] {
        let from = len.saturating_sub(sight).max(HEADER_LEN as u64);
        let end = frames(path, file, from, len, &mut |frame: Frame| {
            *last = Some((frame.begin, frame.check));
        });
        if let (Ok(end), Some(_)) = (end, &last) {
            return Some(end);
        }
    }
    None
}

/// How much of a journal has the reader of its end before it at a time: a record of any size.
const SIGHT: usize = 2 * MAX_RECORD;

/// How much of a journal is as it was written.
pub(crate) struct Soundness {
    pub(crate) journal: Journal,
    /// The whole records, each with the bytes around it, in a journal of their own.
    pub(crate) whole: Vec<u8>,
    /// What is wrong.
    pub(crate) faults: Vec<String>,
    /// Nothing is, but that its last record was never written to its end: as far as what is there
    /// can tell.
    pub(crate) is_torn: bool,
}

/// Looks at every byte of a journal; none is an empty one.
pub(crate) fn check(path: &Path) -> Result<Soundness, ReadError> {
    let bytes = durable::read(path, MAX_JOURNAL)?.unwrap_or_default();
    let mut sound = Soundness {
        journal: Journal::default(),
        whole: header().to_vec(),
        faults: Vec::new(),
        is_torn: false,
    };
    if is_torn_header(&bytes) {
        return Ok(sound);
    }
    if let Err(error @ ReadError::NewerFormat { .. }) = parse(path, &bytes)
        && bytes.get(12..HEADER_LEN) == Some(&[0; 4])
    {
        return Err(error);
    }
    if bytes.get(..HEADER_LEN) != Some(&header()) {
        sound.faults.push("its header has changed".to_owned());
    }
    // With a header that is sound, so that what follows it is read in any case.
    let mut whole = header().to_vec();
    whole.extend_from_slice(bytes.get(HEADER_LEN..).unwrap_or_default());
    let (journal, end) = parse(path, &whole)?;
    if journal.damaged > 0 {
        let what = match journal.damaged {
            1 => "a damaged stretch lies between its records".to_owned(),
            n => format!("{n} damaged stretches lie between its records"),
        };
        sound.faults.push(what);
    }
    if end < whole.len() {
        sound.is_torn = sound.faults.is_empty() && is_torn(&whole[end..]);
        let rest = whole.len() - end;
        sound
            .faults
            .push(format!("its last {rest} bytes are no whole record"));
    }
    let mut at = HEADER_LEN;
    while at < end {
        match record_at(&whole, at) {
            Some((_, next)) => {
                sound.whole.extend_from_slice(&whole[at..next]);
                at = next;
            }
            None => at += 1,
        }
    }
    sound.journal = journal;
    Ok(sound)
}

/// Whether what lies behind the last whole record is the beginning of another one, of which the
/// rest is not there, or zero: who wrote it, or the machine, died meanwhile.
fn is_torn(rest: &[u8]) -> bool {
    let written = rest
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |at| at + 1);
    let magic = written.min(RECORD_MAGIC.len());
    if rest[..magic] != RECORD_MAGIC[..magic] {
        return false;
    }
    let len = rest.get(4..8).and_then(|len| len.first_chunk());
    let len = len.map(|len| u32::from_le_bytes(*len) as usize);
    len.is_none_or(|len| len <= MAX_RECORD && written < RECORD_HEADER_LEN + len)
}

/// The one writer of a journal.
pub(crate) struct JournalWriter {
    file: File,
    path: std::path::PathBuf,
    /// Where the last whole record ends: what lies behind is not there.
    end: u64,
}

impl JournalWriter {
    /// Opens or creates the journal and cuts off a torn tail.
    pub(crate) fn open(path: &Path) -> Result<Self, ReadError> {
        let bytes = durable::read(path, MAX_JOURNAL)?.unwrap_or_default();
        let (_, end) = parse(path, &bytes)?;
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(FileError::of("open", path))?;
        if end < bytes.len() {
            file.set_len(end as u64)
                .and_then(|()| file.sync_data())
                .map_err(FileError::of("cut off the torn tail of", path))?;
        }
        let end = end.max(HEADER_LEN);
        file.write_all_at(&header(), 0)
            .map_err(FileError::of("write", path))?;
        Ok(Self {
            file,
            path: path.to_owned(),
            end: end as u64,
        })
    }

    /// Where the last whole record ends.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Waits until all that was appended is on disk.
    pub(crate) fn sync(&self) -> Result<(), FileError> {
        self.file
            .sync_data()
            .map_err(FileError::of("sync", &self.path))
    }

    /// Appends a record. After an error it is as if it had never been tried.
    pub(crate) fn append(
        &mut self,
        record: JournalRecord,
        durability: Durability,
    ) -> Result<(), WriteError> {
        let record = record.bounded();
        let json = serde_json::to_vec(&record).map_err(|error| WriteError::Value {
            what: "journal record",
            why: error.to_string(),
        })?;
        if json.len() > MAX_RECORD {
            return Err(WriteError::TooLarge {
                what: "journal record",
                size: json.len() as u64,
                limit: MAX_RECORD as u64,
            });
        }
        let mut frame = Vec::with_capacity(RECORD_HEADER_LEN + json.len());
        frame.extend_from_slice(&RECORD_MAGIC);
        frame.extend_from_slice(&(json.len() as u32).to_le_bytes());
        frame.extend_from_slice(&blake3::hash(&json).as_bytes()[..CHECK_LEN]);
        frame.extend_from_slice(&json);

        let mut written = self
            .file
            .write_all_at(&frame, self.end)
            .map_err(FileError::of("append to", &self.path));
        if written.is_ok() && durability == Durability::Synced {
            written = self
                .file
                .sync_data()
                .map_err(FileError::of("sync", &self.path));
        }
        match written {
            Ok(()) => {
                self.end += frame.len() as u64;
                Ok(())
            }
            Err(error) => {
                // Where even this fails, the half record is a torn tail, and
                // the next append goes over it.
                let _ = self.file.set_len(self.end);
                Err(error.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{CaptureFailed, TurnId};

    fn record(turn: u64) -> JournalRecord {
        JournalRecord::CaptureFailed(CaptureFailed {
            at_ms: 1,
            turn: TurnId(turn),
            reason: "x".repeat(turn as usize),
            kind: Default::default(),
        })
    }

    fn written(path: &Path, turns: std::ops::Range<u64>) {
        let mut writer = JournalWriter::open(path).unwrap();
        for turn in turns {
            writer.append(record(turn), Durability::Lazy).unwrap();
        }
    }

    fn turns(path: &Path) -> Vec<u64> {
        let records = read(path).unwrap().records;
        records.iter().map(|r| r.turn().unwrap().0).collect()
    }

    #[test]
    fn a_torn_tail_of_any_length_is_passed_over_and_then_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        written(&path, 0..2);
        let keep = fs::metadata(&path).unwrap().len() as usize;
        written(&path, 2..3);
        let whole = fs::read(&path).unwrap();
        for cut in keep..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(turns(&path), [0, 1]);
            assert_eq!(
                fs::metadata(&path).unwrap().len(),
                cut as u64,
                "readers write"
            );
            written(&path, 7..8);
            assert_eq!(turns(&path), [0, 1, 7]);
            assert_eq!(read(&path).unwrap().damaged, 0);
        }
    }

    #[test]
    fn zeros_after_a_power_cut_are_a_torn_tail() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        written(&path, 0..2);
        let mut bytes = fs::read(&path).unwrap();
        bytes.resize(bytes.len() + 5000, 0);
        fs::write(&path, &bytes).unwrap();
        written(&path, 2..3);
        assert_eq!(turns(&path), [0, 1, 2]);
    }

    #[test]
    fn a_journal_whose_header_never_reached_the_disk_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        for torn in [&b""[..], b"CRABJ", &[0; 40]] {
            fs::write(&path, torn).unwrap();
            assert!(turns(&path).is_empty());
            written(&path, 0..2);
            assert_eq!(turns(&path), [0, 1]);
        }
    }

    #[test]
    fn a_flipped_bit_costs_one_record_and_not_its_successors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        written(&path, 0..4);
        let whole = fs::read(&path).unwrap();
        for at in HEADER_LEN..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            fs::write(&path, &bytes).unwrap();
            // The writer cuts off nothing but a damaged last record.
            JournalWriter::open(&path).unwrap();
            let left = turns(&path);
            assert_eq!(left.len(), 3, "byte {at}: {left:?}");
        }
    }

    #[test]
    fn a_newer_or_foreign_journal_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        written(&path, 0..1);
        let mut bytes = fs::read(&path).unwrap();
        bytes[8] = 2;
        fs::write(&path, &bytes).unwrap();
        let error = read(&path).unwrap_err();
        assert!(matches!(error, ReadError::NewerFormat { found: 2, .. }));
        assert!(JournalWriter::open(&path).is_err());
        fs::write(&path, "something else entirely").unwrap();
        assert!(JournalWriter::open(&path).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"something else entirely");
    }
}
