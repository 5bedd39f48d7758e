//! Names of the files, and how they are read and written.
//!
//! Readers never see half a file: it is written beside its place and renamed. Reading is bounded and follows no links.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The page that lists the episodes, in the root.
pub(super) const INDEX: &str = "index.html";
/// The page of an episode. This and the following are in its directory.
pub(super) const PAGE: &str = "episode.html";
/// What is known of an episode when it begins.
pub(super) const EPISODE: &str = "episode.json";
/// The messages.
pub(super) const TRANSCRIPT: &str = "transcript.jsonl";
/// Reward, metrics, or why there is no verdict.
pub(super) const OUTCOME: &str = "outcome.json";
/// The environment's report.
pub(super) const REPORT: &str = "report.txt";

/// Writes a file that replaces the one of that name as a whole.
pub(super) fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().unwrap_or(OsStr::new("file"));
    // A file that a killed process left may have the name of any process id, so a name that exists is passed over.
    let (temporary, mut file) = loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = name.to_string_lossy();
        let temporary = path.with_file_name(format!(".{name}.{}-{number}", std::process::id()));
        match File::create_new(&temporary) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            file => break (temporary, file?),
        }
    };
    let written = file
        .write_all(contents)
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// The ends of a text file. Bytes that are no UTF-8 are replaced.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ends {
    /// The beginning; all of it if the file is not longer than the limit.
    pub(super) head: String,
    /// Bytes between the two that were not read.
    pub(super) omitted: u64,
    /// The end.
    pub(super) tail: String,
}

/// Reads at most `limit` bytes of a file, half of them from its end.
pub(super) fn read_ends(path: &Path, limit: u64) -> io::Result<Ends> {
    let mut file = open(path)?;
    let length = file.metadata()?.len();
    let mut read = |from: u64, bytes: u64| -> io::Result<String> {
        let mut buffer = Vec::new();
        file.seek(SeekFrom::Start(from))?;
        (&mut file).take(bytes).read_to_end(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer).into_owned())
    };
    if length <= limit {
        return Ok(Ends {
            head: read(0, limit)?,
            ..Ends::default()
        });
    }
    let half = limit / 2;
    Ok(Ends {
        head: read(0, half)?,
        omitted: length - 2 * half,
        tail: read(length - half, half)?,
    })
}

/// Reads a file of at most `limit` bytes.
pub(super) fn read_whole(path: &Path, limit: u64) -> io::Result<String> {
    let ends = read_ends(path, limit)?;
    if ends.omitted > 0 {
        return Err(io::Error::other(format!("it has more than {limit} bytes")));
    }
    Ok(ends.head)
}

/// Opens a plain file: a link or a pipe is an error.
fn open(path: &Path) -> io::Result<File> {
    if !fs::symlink_metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a plain file"));
    }
    File::open(path)
}

/// Whether a process holds the lock that the writer of a transcript has until its episode ends. The system releases it when
/// the process is killed.
pub(super) fn is_locked(path: &Path) -> bool {
    // Where there are no locks, nothing tells a killed process from one that runs.
    open(path).is_ok_and(|file| file.try_lock_shared().is_err())
}

/// The address of a file for a browser.
pub fn file_url(path: &Path) -> String {
    format!("file://{}", encode(path))
}

/// A path as a part of an address.
pub(super) fn encode(path: &Path) -> String {
    let mut out = String::new();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                out.push(char::from(*byte));
            }
            // Writing to a string cannot fail.
            byte => drop(write!(out, "%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_nothing_is_left_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.html");
        replace(&file, b"one").unwrap();
        replace(&file, b"two").unwrap();
        assert_eq!(read_whole(&file, 3).unwrap(), "two");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(replace(&dir.path().join("no/b"), b"").is_err());
    }

    #[test]
    fn reading_is_bounded_and_follows_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a");
        fs::write(&file, "abcdefghij").unwrap();
        let ends = read_ends(&file, 4).unwrap();
        assert_eq!(
            (ends.head.as_str(), ends.omitted, ends.tail.as_str()),
            ("ab", 6, "ij")
        );
        assert!(read_whole(&file, 9).is_err());
        #[cfg(unix)]
        {
            let link = dir.path().join("b");
            std::os::unix::fs::symlink(&file, &link).unwrap();
            assert!(read_whole(&link, 100).is_err());
        }
    }

    #[test]
    fn an_address_has_no_characters_of_its_own_meaning() {
        let path = Path::new("/a b/c:#?\"<ä.html");
        assert_eq!(file_url(path), "file:///a%20b/c%3A%23%3F%22%3C%C3%A4.html");
    }
}
