//! The commit watermark: how many commits were acknowledged, kept in a file beside the database.
//!
//! SQLite ignores a write-ahead log from the first frame whose checksum does not verify. One flipped bit therefore
//! loses every later transaction, and the result is a valid but older database, which an integrity check cannot detect.
//! So each commit also updates a small separate file, `journal.mark`. A journal with fewer commits than its watermark
//! has lost transactions.
//!
//! A commit writes the watermark without fsync, like the write-ahead log: both survive the death of the process. A
//! power loss may lose the end of either. So the watermark also holds how many commits were flushed (`synced`) and the
//! boot id: after a reboot only the flushed commits are required.
//!
//! Two slots, each with a checksum, are written alternately, so that a torn write leaves the other one intact.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::private;
use crate::tally::Tally;

/// File name in the data directory.
const FILE: &str = "journal.mark";
/// Size of a slot: one disk sector, which is written atomically.
const SLOT_BYTES: usize = 512;
/// Linux file with the id of the current boot.
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";

/// The acknowledged commits and row counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Watermark {
    /// Id of the journal.
    pub(crate) journal: String,
    /// Boot id at the time of writing; empty if the system has none.
    pub(crate) boot: String,
    /// Acknowledged commits.
    pub(crate) commits: u64,
    /// Commits that are flushed to disk.
    pub(crate) synced: u64,
    pub(crate) turns: u64,
    pub(crate) steps: u64,
}

impl Watermark {
    /// The number of commits that the journal must contain.
    pub(crate) fn required(&self) -> u64 {
        if !self.boot.is_empty() && self.boot == boot_id() {
            self.commits
        } else {
            self.synced
        }
    }
}

/// The open watermark file.
#[derive(Debug)]
pub(crate) struct WatermarkFile {
    file: File,
    mark: Watermark,
    /// Whether the next write goes to the second slot.
    second: bool,
    /// Whether the last write failed, so that repeated failures are logged once.
    failed: bool,
}

/// Path of the watermark file of a data directory.
pub(crate) fn path(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

/// Renames the watermark file of a journal that no longer exists, so that the next journal does not read it.
pub(crate) fn archive(dir: &Path) -> io::Result<()> {
    std::fs::rename(path(dir), dir.join("journal.mark.old"))
}

/// Reads the watermark of a data directory; `None` if there is none, or if neither slot verifies.
pub(crate) fn read(dir: &Path) -> Option<Watermark> {
    let mut bytes = Vec::new();
    let read = File::open(path(dir)).and_then(|file| {
        let most = 2 * SLOT_BYTES as u64;
        file.take(most).read_to_end(&mut bytes)
    });
    if let Err(error) = read {
        if error.kind() != io::ErrorKind::NotFound {
            tracing::warn!(%error, file = %path(dir).display(), "cannot read the commit watermark of the journal");
        }
        return None;
    }
    let slots = bytes.chunks(SLOT_BYTES).filter_map(decode);
    slots.max_by_key(|mark| (mark.commits, mark.synced))
}

impl WatermarkFile {
    /// Writes both slots from the tally and flushes them. `synced` commits are known to be flushed.
    pub(crate) fn create(dir: &Path, tally: &Tally, synced: u64) -> io::Result<WatermarkFile> {
        let mark = Watermark {
            journal: tally.journal.clone(),
            boot: boot_id(),
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
        let mut own = WatermarkFile {
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

    /// Records a commit. A failure is logged and does not undo the commit: a watermark that lags only detects less.
    pub(crate) fn record_commit(&mut self, tally: &Tally) {
        self.mark.commits = tally.commits;
        self.mark.turns = tally.turns;
        self.mark.steps = tally.steps;
        self.note(WatermarkFile::write);
    }

    /// Records that all commits so far are flushed to disk.
    pub(crate) fn record_flush(&mut self) {
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
            tracing::warn!(%error, "cannot write the commit watermark of the journal: lost commits may go unnoticed until the next successful write");
        }
        self.failed = noted.is_err();
    }

    fn write(&mut self) -> io::Result<()> {
        let slot = encode(&self.mark)?;
        let at = if self.second { SLOT_BYTES as u64 } else { 0 };
        self.file.seek(SeekFrom::Start(at))?;
        self.file.write_all(&slot)?;
        self.second = !self.second;
        Ok(())
    }
}

/// Slot format: checksum, watermark as JSON, padding with spaces.
pub(crate) fn encode(mark: &Watermark) -> io::Result<Vec<u8>> {
    let text = serde_json::to_string(mark)?;
    let mut slot = format!("{:08x} {text}", crc32fast::hash(text.as_bytes())).into_bytes();
    if slot.len() >= SLOT_BYTES {
        return Err(io::Error::other("the watermark does not fit into its slot"));
    }
    slot.resize(SLOT_BYTES - 1, b' ');
    slot.push(b'\n');
    Ok(slot)
}

fn decode(slot: &[u8]) -> Option<Watermark> {
    let (sum, text) = std::str::from_utf8(slot).ok()?.split_once(' ')?;
    let text = text.trim_end();
    let whole = u32::from_str_radix(sum, 16).ok()? == crc32fast::hash(text.as_bytes());
    whole.then(|| serde_json::from_str(text).ok()).flatten()
}

fn boot_id() -> String {
    // On other systems the id is empty and only flushed commits are required.
    let named = std::fs::read_to_string(BOOT_ID_FILE).unwrap_or_default();
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
    fn a_torn_slot_falls_back_to_the_previous_watermark() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = WatermarkFile::create(dir.path(), &tally(4), 0).unwrap();
        for commits in 5..=7 {
            file.record_commit(&tally(commits));
            assert_eq!(read(dir.path()).unwrap().commits, commits);
        }
        let mut bytes = std::fs::read(path(dir.path())).unwrap();
        assert_eq!(bytes.len(), 2 * SLOT_BYTES);
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
        let mut file = WatermarkFile::create(dir.path(), &tally(4), 0).unwrap();
        file.record_flush();
        file.record_commit(&tally(9));
        let mut mark = read(dir.path()).unwrap();
        assert_eq!((mark.commits, mark.synced), (9, 4));
        if !mark.boot.is_empty() {
            assert_eq!(mark.required(), 9);
        }
        mark.boot = "another".to_owned();
        assert_eq!(mark.required(), 4);
    }
}
