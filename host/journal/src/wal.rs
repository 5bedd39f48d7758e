//! Reading a write-ahead log past a damaged frame.
//!
//! Each frame of a log is a page with a checksum over itself and all frames before it, and SQLite stops at the first one
//! that does not verify. The checksum of a damaged frame was made when it was whole, so the frames behind it can still
//! be verified from there. [`Frames::mended`] is the log with its checksums made anew, from which SQLite reads every
//! frame; what was damaged is in [`Frames::damaged`].
//!
//! The layout is that of <https://sqlite.org/fileformat2.html#the_write_ahead_log>.

use std::ops::Range;

/// Bytes before the first frame.
const HEADER: usize = 32;
/// Bytes before the page of a frame.
const FRAME_HEADER: usize = 24;
/// The part of a frame header that its checksum covers: page number and size of the database.
const COVERED: usize = 8;
/// Where the checksums are in the header, and in that of a frame.
const HEADER_SUM: usize = 24;
const FRAME_SUM: usize = 16;
const MAGIC: u32 = 0x377f_0682;

/// Two running sums.
type Sum = (u32, u32);

/// The frames of a log that belong together.
pub(crate) struct Frames<'a> {
    log: &'a [u8],
    page: usize,
    /// Whether checksums take words as big-endian.
    big: bool,
    count: usize,
}

impl<'a> Frames<'a> {
    /// Reads the header and counts the frames; none when this is no log, or an empty one.
    pub(crate) fn read(log: &'a [u8]) -> Option<Frames<'a>> {
        let magic = word(log, 0, true)?;
        let page = word(log, 8, true)? as usize;
        if magic & !1 != MAGIC || !page.is_power_of_two() || !(512..=65_536).contains(&page) {
            return None;
        }
        let mut frames = Frames {
            log,
            page,
            big: magic & 1 == 1,
            count: 0,
        };
        let most = log.len().saturating_sub(HEADER) / (FRAME_HEADER + page);
        // What lies behind the last frame is left from before the log began anew, and has other salts. A frame whose
        // salts were damaged has frames with the right ones behind it.
        let ours = (0..most).rev().find(|frame| frames.salted(*frame));
        frames.count = ours.map_or(0, |last| last + 1);
        (frames.count > 0).then_some(frames)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The frames that do not verify, counted from 1.
    pub(crate) fn damaged(&self) -> Vec<usize> {
        let mut before = self.stored(HEADER_SUM);
        let mut damaged = Vec::new();
        for frame in 0..self.count {
            let at = self.at(frame).start;
            let stored = self.stored(at + FRAME_SUM);
            if !self.salted(frame) || self.sum(before, frame) != stored {
                damaged.push(frame + 1);
            }
            before = stored;
        }
        damaged
    }

    /// The same log, with salts and checksums that verify.
    pub(crate) fn mended(&self) -> Option<Vec<u8>> {
        let end = self.at(self.count).start;
        let mut log = self.log.get(..end)?.to_vec();
        let salts = self.log.get(16..HEADER_SUM)?;
        let mut sum = self.add((0, 0), self.log.get(..HEADER_SUM)?);
        put(&mut log, HEADER_SUM, sum)?;
        for frame in 0..self.count {
            let at = self.at(frame).start;
            log.get_mut(at + COVERED..at + FRAME_SUM)?
                .copy_from_slice(salts);
            sum = self.sum(sum, frame);
            put(&mut log, at + FRAME_SUM, sum)?;
        }
        Some(log)
    }

    fn at(&self, frame: usize) -> Range<usize> {
        let start = HEADER + frame * (FRAME_HEADER + self.page);
        start..start + FRAME_HEADER + self.page
    }

    fn salted(&self, frame: usize) -> bool {
        let at = self.at(frame).start;
        self.log.get(at + COVERED..at + FRAME_SUM) == self.log.get(16..HEADER_SUM)
    }

    fn stored(&self, at: usize) -> Sum {
        let read = |at| word(self.log, at, true).unwrap_or(0);
        (read(at), read(at + 4))
    }

    fn sum(&self, before: Sum, frame: usize) -> Sum {
        let at = self.at(frame);
        let part = |range| self.log.get(range).unwrap_or_default();
        let covered = part(at.start..at.start + COVERED);
        let page = part(at.start + FRAME_HEADER..at.end);
        self.add(self.add(before, covered), page)
    }

    fn add(&self, (mut first, mut second): Sum, bytes: &[u8]) -> Sum {
        for at in (0..bytes.len()).step_by(8) {
            let read = |at| word(bytes, at, self.big).unwrap_or(0);
            first = first.wrapping_add(read(at)).wrapping_add(second);
            second = second.wrapping_add(read(at + 4)).wrapping_add(first);
        }
        (first, second)
    }
}

fn word(bytes: &[u8], at: usize, big: bool) -> Option<u32> {
    let four: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(if big {
        u32::from_be_bytes(four)
    } else {
        u32::from_le_bytes(four)
    })
}

fn put(bytes: &mut [u8], at: usize, (first, second): Sum) -> Option<()> {
    bytes
        .get_mut(at..at + 4)?
        .copy_from_slice(&first.to_be_bytes());
    bytes
        .get_mut(at + 4..at + 8)?
        .copy_from_slice(&second.to_be_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    /// A database whose rows are in its log alone, and that log.
    fn logged(path: &std::path::Path) -> (Connection, Vec<u8>) {
        let conn = Connection::open(path).unwrap();
        conn.execute_batch("CREATE TABLE t (n INTEGER, text TEXT); PRAGMA journal_mode = WAL;")
            .unwrap();
        for n in 0..60 {
            conn.execute("INSERT INTO t VALUES (?1, ?2)", (n, "x".repeat(300)))
                .unwrap();
        }
        let log = std::fs::read(path.with_extension("db-wal")).unwrap();
        (conn, log)
    }

    fn rows(dir: &std::path::Path, name: &str, database: &[u8], log: &[u8]) -> i64 {
        let path = dir.join(name);
        std::fs::write(&path, database).unwrap();
        std::fs::write(dir.join(format!("{name}-wal")), log).unwrap();
        let conn = Connection::open(&path).unwrap();
        conn.query_row("SELECT COUNT(*) FROM t", [], |row| row.get(0))
            .unwrap()
    }

    #[test]
    fn all_frames_behind_a_damaged_one_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let (conn, log) = logged(&dir.path().join("a.db"));
        let database = std::fs::read(dir.path().join("a.db")).unwrap();
        let whole = Frames::read(&log).unwrap();
        assert!(whole.damaged().is_empty() && whole.count() >= 60);
        assert_eq!(whole.mended().unwrap(), log);
        // In the middle of the text of a row, in the salt of a frame, in a checksum.
        let frame = |n: usize| HEADER + n * (FRAME_HEADER + 4096);
        for at in [frame(7) + FRAME_HEADER + 4000, frame(7) + 9, frame(7) + 17] {
            let mut damaged = log.clone();
            damaged[at] ^= 4;
            let before = rows(dir.path(), &format!("b{at}.db"), &database, &damaged);
            assert!(before < 10, "SQLite stops there: {before}");
            let frames = Frames::read(&damaged).unwrap();
            assert_eq!(frames.damaged()[0], 8);
            assert!(frames.damaged().len() <= 2);
            let mended = frames.mended().unwrap();
            let after = rows(dir.path(), &format!("c{at}.db"), &database, &mended);
            assert_eq!(after, 60);
        }
        drop(conn);
        assert!(Frames::read(b"").is_none() && Frames::read(&[0; 5000]).is_none());
    }
}
