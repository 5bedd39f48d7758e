//! The mark beside the journal: how far its record was acknowledged.
//!
//! A write-ahead log ends where its first frame does not verify. One flipped bit in it therefore takes every later
//! transaction away, and what is left is a whole, older database that no check of its own can tell from a new one. So
//! each commit is also noted in a small file outside of it, `journal.mark`. A journal with fewer commits than its mark
//! has lost its end.
//!
//! A commit writes the mark without waiting for the disk, as it does the log: both outlive the death of the process.
//! A power cut may lose the end of the one and keep that of the other. So the mark also says up to which commit the
//! journal was flushed (`synced`) and in which boot of the machine it was written: after another boot only the flushed
//! commits must be there.
//!
//! Two slots are written in turn, each with its checksum, so that a torn write leaves the other one.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::private;
use crate::tally::Tally;

/// Name of the file in the data directory.
const FILE: &str = "journal.mark";
/// Bytes of a slot: what a disk writes whole.
const SLOT: usize = 512;
/// Where Linux names the current boot.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// What was acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    /// Which journal it is of.
    pub(crate) journal: String,
    /// The boot in which it was written; empty where the system does not name it.
    pub(crate) boot: String,
    /// Commits that were acknowledged.
    pub(crate) commits: u64,
    /// Commits that were flushed to the disk.
    pub(crate) synced: u64,
    pub(crate) turns: u64,
    pub(crate) steps: u64,
}

impl Mark {
    /// Commits that must be in the journal now.
    pub(crate) fn required(&self) -> u64 {
        if !self.boot.is_empty() && self.boot == boot() {
            self.commits
        } else {
            self.synced
        }
    }
}

/// The open file.
#[derive(Debug)]
pub(crate) struct MarkFile {
    file: File,
    mark: Mark,
    /// The slot that the next write goes to.
    second: bool,
    /// Whether the last write failed, so that it is logged once.
    failed: bool,
}

/// Where the mark of a data directory is.
pub(crate) fn path(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

/// Keeps the mark of a journal that is no longer there out of the way of the next one.
pub(crate) fn set_aside(dir: &Path) -> io::Result<()> {
    std::fs::rename(path(dir), dir.join("journal.mark.old"))
}

/// The mark of a data directory; none when there is none, or none of its slots is whole.
pub(crate) fn read(dir: &Path) -> Option<Mark> {
    let mut bytes = Vec::new();
    let read = File::open(path(dir)).and_then(|file| {
        let most = 2 * SLOT as u64;
        file.take(most).read_to_end(&mut bytes)
    });
    if let Err(error) = read {
        if error.kind() != io::ErrorKind::NotFound {
            tracing::warn!(%error, file = %path(dir).display(), "the mark of the journal cannot be read");
        }
        return None;
    }
    let slots = bytes.chunks(SLOT).filter_map(decode);
    slots.max_by_key(|mark| (mark.commits, mark.synced))
}

impl MarkFile {
    /// Makes the mark say what the journal holds, with both slots on the disk. `synced` commits are known to be flushed.
    pub(crate) fn begin(dir: &Path, tally: &Tally, synced: u64) -> io::Result<MarkFile> {
        let mark = Mark {
            journal: tally.journal.clone(),
            boot: boot(),
            commits: tally.commits,
            synced,
            turns: tally.turns,
            steps: tally.steps,
        };
        let mut options = private::options();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path(dir))?;
        private::restrict(&path(dir))?;
        let mut own = MarkFile {
            file,
            mark,
            second: false,
            failed: false,
        };
        own.write()?;
        own.write()?;
        own.file.sync_all()?;
        Ok(own)
    }

    /// Notes a commit. A mark that falls behind only guards less, so a failure does not undo the commit.
    pub(crate) fn committed(&mut self, tally: &Tally) {
        self.mark.commits = tally.commits;
        self.mark.turns = tally.turns;
        self.mark.steps = tally.steps;
        self.note(MarkFile::write);
    }

    /// Notes that all commits so far are on the disk.
    pub(crate) fn flushed(&mut self) {
        self.mark.synced = self.mark.commits;
        self.note(|own| {
            own.write()?;
            own.file.sync_data()
        });
    }

    fn note(&mut self, act: impl FnOnce(&mut Self) -> io::Result<()>) {
        let noted = act(self);
        if let Err(error) = &noted
            && !self.failed
        {
            tracing::warn!(%error, "the mark of the journal is behind: a damaged log may go unnoticed until it is written again");
        }
        self.failed = noted.is_err();
    }

    fn write(&mut self) -> io::Result<()> {
        let slot = encode(&self.mark)?;
        let at = if self.second { SLOT as u64 } else { 0 };
        self.file.seek(SeekFrom::Start(at))?;
        self.file.write_all(&slot)?;
        self.second = !self.second;
        Ok(())
    }
}

/// The checksum, the mark as JSON, spaces up to the end of the slot.
pub(crate) fn encode(mark: &Mark) -> io::Result<Vec<u8>> {
    let text = serde_json::to_string(mark)?;
    let mut slot = format!("{:08x} {text}", crc32fast::hash(text.as_bytes())).into_bytes();
    if slot.len() >= SLOT {
        return Err(io::Error::other("the mark does not fit its slot"));
    }
    slot.resize(SLOT - 1, b' ');
    slot.push(b'\n');
    Ok(slot)
}

fn decode(slot: &[u8]) -> Option<Mark> {
    let (sum, text) = std::str::from_utf8(slot).ok()?.split_once(' ')?;
    let text = text.trim_end();
    let whole = u32::from_str_radix(sum, 16).ok()? == crc32fast::hash(text.as_bytes());
    whole.then(|| serde_json::from_str(text).ok()).flatten()
}

fn boot() -> String {
    // Elsewhere only what was flushed is required.
    let named = std::fs::read_to_string(BOOT).unwrap_or_default();
    named.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(commits: u64) -> Tally {
        Tally {
            journal: "j".to_owned(),
            commits,
            turns: commits / 2,
            steps: 0,
        }
    }

    #[test]
    fn a_torn_slot_leaves_the_mark_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = MarkFile::begin(dir.path(), &tally(4), 0).unwrap();
        for commits in 5..=7 {
            file.committed(&tally(commits));
            assert_eq!(read(dir.path()).unwrap().commits, commits);
        }
        let mut bytes = std::fs::read(path(dir.path())).unwrap();
        assert_eq!(bytes.len(), 2 * SLOT);
        let at = bytes
            .windows(11)
            .position(|w| w == b"\"commits\":7")
            .unwrap();
        bytes[at + 10] = b'9';
        std::fs::write(path(dir.path()), &bytes).unwrap();
        assert_eq!(read(dir.path()).unwrap().commits, 6);
        std::fs::write(path(dir.path()), b"nothing of the kind").unwrap();
        assert_eq!(read(dir.path()), None);
    }

    #[test]
    fn after_another_boot_only_what_was_flushed_is_required() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = MarkFile::begin(dir.path(), &tally(4), 0).unwrap();
        file.flushed();
        file.committed(&tally(9));
        let mut mark = read(dir.path()).unwrap();
        assert_eq!((mark.commits, mark.synced), (9, 4));
        if !mark.boot.is_empty() {
            assert_eq!(mark.required(), 9);
        }
        mark.boot = "another".to_owned();
        assert_eq!(mark.required(), 4);
    }
}
