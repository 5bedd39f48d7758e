//! Repair of a write-ahead log with damaged frames.
//!
//! Each frame holds a page and a checksum over itself and all frames before it, and SQLite stops at the first frame that
//! does not verify. The stored checksum of a damaged frame was computed before the damage, so the frames after it can
//! be verified starting from it. [`WalFrames::repaired`] returns the log with recomputed checksums, from which SQLite
//! reads every frame; [`WalFrames::damaged`] lists the damaged frames.
//!
//! File format: <https://sqlite.org/fileformat2.html#the_write_ahead_log>.

use std::ops::Range;

/// Size of the WAL header.
const HEADER: usize = 32;
/// Size of a frame header.
const FRAME_HEADER: usize = 24;
/// Bytes of a frame header that its checksum covers: page number and database size.
const CHECKSUMMED: usize = 8;
/// Offsets of the checksum in the WAL header and in a frame header.
const HEADER_CHECKSUM: usize = 24;
const FRAME_CHECKSUM: usize = 16;
const MAGIC: u32 = 0x377f_0682;

/// The two running sums of the WAL checksum.
type Checksum = (u32, u32);

/// The valid range of frames of a WAL.
pub(crate) struct WalFrames<'a> {
    log: &'a [u8],
    page: usize,
    /// Whether checksums take words as big-endian.
    big: bool,
    count: usize,
}

impl<'a> WalFrames<'a> {
    /// Parses the header and counts the frames; `None` if this is not a WAL or has no frames.
    pub(crate) fn parse(log: &'a [u8]) -> Option<WalFrames<'a>> {
        let magic = read_u32(log, 0, true)?;
        let page = read_u32(log, 8, true)? as usize;
        if magic & !1 != MAGIC || !page.is_power_of_two() || !(512..=65_536).contains(&page) {
            return None;
        }
        let mut frames = WalFrames {
            log,
            page,
            big: magic & 1 == 1,
            count: 0,
        };
        let most = log.len().saturating_sub(HEADER) / (FRAME_HEADER + page);
        // Frames after the last valid one are left from before the WAL restarted and have other salts. A frame with
        // damaged salts is followed by frames with the right ones.
        let ours = (0..most)
            .rev()
            .find(|frame| frames.has_current_salts(*frame));
        frames.count = ours.map_or(0, |last| last + 1);
        (frames.count > 0).then_some(frames)
    }

    /// The number of frames.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The frames that do not verify, numbered from 1.
    pub(crate) fn damaged(&self) -> Vec<usize> {
        let mut before = self.stored_checksum(HEADER_CHECKSUM);
        let mut damaged = Vec::new();
        for frame in 0..self.count {
            let at = self.frame_range(frame).start;
            let stored = self.stored_checksum(at + FRAME_CHECKSUM);
            if !self.has_current_salts(frame) || self.frame_checksum(before, frame) != stored {
                damaged.push(frame + 1);
            }
            before = stored;
        }
        damaged
    }

    /// The WAL with corrected salts and checksums.
    pub(crate) fn repaired(&self) -> Option<Vec<u8>> {
        let end = self.frame_range(self.count).start;
        let mut log = self.log.get(..end)?.to_vec();
        let salts = self.log.get(16..HEADER_CHECKSUM)?;
        let mut sum = self.checksum((0, 0), self.log.get(..HEADER_CHECKSUM)?);
        write_checksum(&mut log, HEADER_CHECKSUM, sum)?;
        for frame in 0..self.count {
            let at = self.frame_range(frame).start;
            log.get_mut(at + CHECKSUMMED..at + FRAME_CHECKSUM)?
                .copy_from_slice(salts);
            sum = self.frame_checksum(sum, frame);
            write_checksum(&mut log, at + FRAME_CHECKSUM, sum)?;
        }
        Some(log)
    }

    fn frame_range(&self, frame: usize) -> Range<usize> {
        let start = HEADER + frame * (FRAME_HEADER + self.page);
        start..start + FRAME_HEADER + self.page
    }

    fn has_current_salts(&self, frame: usize) -> bool {
        let at = self.frame_range(frame).start;
        self.log.get(at + CHECKSUMMED..at + FRAME_CHECKSUM) == self.log.get(16..HEADER_CHECKSUM)
    }

    fn stored_checksum(&self, at: usize) -> Checksum {
        let read = |at| read_u32(self.log, at, true).unwrap_or(0);
        (read(at), read(at + 4))
    }

    fn frame_checksum(&self, before: Checksum, frame: usize) -> Checksum {
        let at = self.frame_range(frame);
        let part = |range| self.log.get(range).unwrap_or_default();
        let covered = part(at.start..at.start + CHECKSUMMED);
        let page = part(at.start + FRAME_HEADER..at.end);
        self.checksum(self.checksum(before, covered), page)
    }

    fn checksum(&self, (mut first, mut second): Checksum, bytes: &[u8]) -> Checksum {
        for at in (0..bytes.len()).step_by(8) {
            let read = |at| read_u32(bytes, at, self.big).unwrap_or(0);
            first = first.wrapping_add(read(at)).wrapping_add(second);
            second = second.wrapping_add(read(at + 4)).wrapping_add(first);
        }
        (first, second)
    }
}

fn read_u32(bytes: &[u8], at: usize, big: bool) -> Option<u32> {
    let four: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(if big {
        u32::from_be_bytes(four)
    } else {
        u32::from_le_bytes(four)
    })
}

fn write_checksum(bytes: &mut [u8], at: usize, (first, second): Checksum) -> Option<()> {
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

    /// A database whose rows are only in its WAL, and that WAL.
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
    fn repair_makes_frames_after_a_damaged_one_readable() {
        let dir = tempfile::tempdir().unwrap();
        let (conn, log) = logged(&dir.path().join("a.db"));
        let database = std::fs::read(dir.path().join("a.db")).unwrap();
        let whole = WalFrames::parse(&log).unwrap();
        assert!(whole.damaged().is_empty() && whole.count() >= 60);
        assert_eq!(whole.repaired().unwrap(), log);
        // In the middle of the text of a row, in the salt of a frame, in a checksum.
        let frame = |n: usize| HEADER + n * (FRAME_HEADER + 4096);
        for at in [frame(7) + FRAME_HEADER + 4000, frame(7) + 9, frame(7) + 17] {
            let mut damaged = log.clone();
            damaged[at] ^= 4;
            let before = rows(dir.path(), &format!("b{at}.db"), &database, &damaged);
            assert!(before < 10, "SQLite stops there: {before}");
            let frames = WalFrames::parse(&damaged).unwrap();
            assert_eq!(frames.damaged()[0], 8);
            assert!(frames.damaged().len() <= 2);
            let repaired = frames.repaired().unwrap();
            let after = rows(dir.path(), &format!("c{at}.db"), &database, &repaired);
            assert_eq!(after, 60);
        }
        drop(conn);
        assert!(WalFrames::parse(b"").is_none() && WalFrames::parse(&[0; 5000]).is_none());
    }
}
