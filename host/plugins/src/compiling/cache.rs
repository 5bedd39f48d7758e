//! Compiled code that is kept between processes.
//!
//! Beside each `KEY.cwasm` stands a `KEY.sum` with its length and checksum, written after it. Code
//! without a sum, with another one, or that the engine does not take is removed and compiled again: the
//! cache is never a reason to fail. Why its files may be run as machine code is said in [`super::trusted`];
//! what that rests on is kept here: nobody but this user can write to the directory, every file that is
//! read belongs to this user and is closed to everybody else, and no file is ever changed after it has its name.
//! A file that somebody else owns or can write to is not used and not touched: that it is there is a fact that the
//! operator has to look at.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use wasmtime::Engine;
use wasmtime::component::Component;

use super::key::Key;
use super::trusted::{CheckedFile, CompiledCode};

/// A directory that compiled code is not kept in.
#[derive(Debug, thiserror::Error)]
pub(super) enum CacheError {
    #[error("the directory cannot be used: {0}")]
    Io(#[from] io::Error),
    #[error("it is a link or no directory; name the directory itself")]
    NotADirectory,
    #[error(
        "it belongs to user {owner}, and this process runs as {user}; name a directory of its own"
    )]
    Foreign { owner: u32, user: u32 },
    #[error(
        "its mode is {mode:03o}, and others must not get at machine code; run `chmod 700` on it"
    )]
    Open { mode: u32 },
}

/// What the cache found under a key.
enum Entry {
    Missing,
    /// Cut off, damaged or made for another engine: it is removed and made again.
    Damaged(String),
    /// It may be somebody else's work: it is neither used nor removed.
    Untrusted(String),
}

impl From<io::Error> for Entry {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Entry::Missing,
            _ => Entry::Damaged(error.to_string()),
        }
    }
}

/// After this long a file that was never finished belongs to a process that is gone.
const ABANDONED: Duration = Duration::from_secs(3600);
/// More than a sum is ever long.
const SUM_BYTES: u64 = 1 << 10;
/// How much is read at a time to be summed up.
const CHUNK: usize = 256 << 10;

/// A directory of compiled code.
pub(super) struct Cache {
    /// Held open, so that it stays the one that was checked.
    directory: File,
    path: PathBuf,
    /// Its name, as the operator knows it.
    shown: PathBuf,
    bound: u64,
}

impl Cache {
    /// Opens the directory, or makes it. At most `bound` bytes are kept in it.
    pub(super) fn open(path: &Path, bound: u64) -> Result<Cache, CacheError> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        match DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error.into()),
        }
        if !fs::symlink_metadata(path)?.is_dir() {
            return Err(CacheError::NotADirectory);
        }
        let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::NOFOLLOW;
        let directory = OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(path)?;
        check_directory(&directory)?;
        Ok(Cache {
            shown: path.to_owned(),
            path: reached(&directory, path.to_owned()),
            directory,
            bound,
        })
    }

    /// The code that is kept under this key, if there is any, it is whole, and nobody else can have written it.
    pub(super) fn load(&self, key: &Key, engine: &Engine) -> Option<Component> {
        let loaded = self.checked(key).and_then(|file| {
            let component = file.load(engine);
            component.map_err(|error| Entry::Damaged(format!("{error:#}")))
        });
        match loaded {
            Ok(component) => {
                self.mark_used(key);
                Some(component)
            }
            Err(Entry::Missing) => None,
            Err(Entry::Damaged(reason)) => {
                tracing::warn!("compiled code is compiled again: {reason}");
                self.remove(key);
                None
            }
            Err(Entry::Untrusted(reason)) => {
                tracing::error!("compiled code is not used: {reason}");
                None
            }
        }
    }

    /// Keeps code under this key. That it cannot be kept is told and costs nothing but time. What is not trusted under
    /// this key stays as it is.
    pub(super) fn store(&self, key: &Key, code: &CompiledCode) {
        let code = code.bytes();
        if code.len() as u64 > self.bound || matches!(self.checked(key), Err(Entry::Untrusted(_))) {
            return;
        }
        let kept = self.write(&self.code(key), code).and_then(|()| {
            let sum = Sum::of(&mut &*code)?;
            self.write(&self.sum(key), sum.to_string().as_bytes())
        });
        // Also after a failure, which may have been a full disk.
        let room = self.make_room();
        if let Err(error) = kept.and(room) {
            tracing::warn!("compiled code is not kept: {error}");
        }
    }

    fn code(&self, key: &Key) -> PathBuf {
        self.path.join(format!("{}.cwasm", key.name()))
    }

    fn sum(&self, key: &Key) -> PathBuf {
        self.path.join(format!("{}.sum", key.name()))
    }

    fn checked(&self, key: &Key) -> Result<CheckedFile, Entry> {
        if let Err(error) = check_directory(&self.directory) {
            let shown = self.shown.display();
            return Err(Entry::Untrusted(format!("{shown}: {error}")));
        }
        let mut sum = String::new();
        let written = self.open_own(&self.sum(key))?;
        written.take(SUM_BYTES).read_to_string(&mut sum)?;
        let path = self.code(key);
        let mut code = self.open_own(&path)?;
        let found = Sum::of(&mut code)?;
        if found.to_string() != sum {
            let was = sum.escape_debug();
            return Err(Entry::Damaged(format!("it was {was}, and is {found}")));
        }
        let name = reached(&code, path);
        Ok(CheckedFile::new(code, name))
    }

    /// Opens a file of the cache that is a regular one, belongs to this user and that nobody else can write to.
    fn open_own(&self, path: &Path) -> Result<File, Entry> {
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(path);
        let shown = self.shown.join(path.file_name().unwrap_or_default());
        let refused = |why: String| {
            let shown = shown.display();
            Entry::Untrusted(format!(
                "{shown} {why}; it was not made by this program for this user, delete it"
            ))
        };
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
                return Err(refused("is a link".to_owned()));
            }
            // Its owner can read whatever this program has put there.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(refused("cannot be read by this user".to_owned()));
            }
            Err(error) => return Err(error.into()),
        };
        let found = file.metadata()?;
        let user = rustix::process::geteuid().as_raw();
        if !found.is_file() {
            return Err(refused("is no regular file".to_owned()));
        }
        if found.uid() != user {
            let owner = found.uid();
            return Err(refused(format!(
                "belongs to user {owner}, and this process runs as {user}"
            )));
        }
        if found.mode() & 0o077 != 0 {
            let mode = found.mode() & 0o777;
            return Err(refused(format!("has the mode {mode:03o}")));
        }
        Ok(file)
    }

    /// A file gets its name when it is whole.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        // Processes in two containers may have the same number; the time tells them apart.
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let at = since.unwrap_or_default().as_nanos();
        let name = format!("{}-{at}-{count}.new", std::process::id());
        let unfinished = self.path.join(name);
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&unfinished)
            .and_then(|mut file| {
                file.write_all(bytes)?;
                file.set_permissions(Permissions::from_mode(0o400))
            })
            .and_then(|()| fs::rename(&unfinished, path));
        written.inspect_err(|_| {
            // The first error is the one to tell.
            let _ = fs::remove_file(&unfinished);
        })
    }

    /// What was used last is removed last. A disk that refuses only makes the order worse.
    fn mark_used(&self, key: &Key) {
        let _ = File::open(self.code(key)).and_then(|file| file.set_modified(SystemTime::now()));
    }

    fn remove(&self, key: &Key) {
        for path in [self.sum(key), self.code(key)] {
            // Another process may have been first.
            let _ = fs::remove_file(path);
        }
    }

    /// Removes what was not used for longest until the rest fits. Who has mapped a removed file keeps it.
    fn make_room(&self) -> io::Result<()> {
        let now = SystemTime::now();
        let (mut kept, mut total) = (Vec::new(), 0);
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            let Ok(found) = fs::symlink_metadata(&path) else {
                continue; // removed meanwhile
            };
            let used = found.modified()?;
            match path.extension().and_then(|ending| ending.to_str()) {
                Some("cwasm") => {
                    total += found.len();
                    kept.push((used, found.len(), path));
                }
                Some("new") if now.duration_since(used).is_ok_and(|age| age > ABANDONED) => {
                    let _ = fs::remove_file(&path);
                }
                _ => {}
            }
        }
        kept.sort_unstable();
        for (_, bytes, path) in kept {
            if total <= self.bound {
                break;
            }
            for path in [path.with_extension("sum"), path] {
                let _ = fs::remove_file(path);
            }
            total = total.saturating_sub(bytes);
        }
        Ok(())
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache")
            .field("directory", &self.directory)
            .field("bound", &self.bound)
            .finish_non_exhaustive()
    }
}

/// The name under which an open file or directory is reached. Where the system offers it, it leads to what is open,
/// whatever its own name is given to meanwhile.
fn reached(open: &File, path: PathBuf) -> PathBuf {
    match cfg!(target_os = "linux") {
        true => PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd())),
        false => path,
    }
}

/// Nobody but this user may write to the directory or look into it.
fn check_directory(directory: &File) -> Result<(), CacheError> {
    let found = directory.metadata()?;
    let user = rustix::process::geteuid().as_raw();
    if found.uid() != user {
        return Err(CacheError::Foreign {
            owner: found.uid(),
            user,
        });
    }
    if found.mode() & 0o077 != 0 {
        return Err(CacheError::Open {
            mode: found.mode() & 0o777,
        });
    }
    Ok(())
}

/// Length and checksum.
struct Sum {
    bytes: u64,
    crc: u32,
}

impl Sum {
    fn of(from: &mut impl Read) -> io::Result<Sum> {
        let mut crc = crc32fast::Hasher::new();
        let mut chunk = vec![0; CHUNK];
        let mut bytes = 0;
        loop {
            let read = match from.read(&mut chunk) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            crc.update(chunk.get(..read).unwrap_or_default());
            bytes += read as u64;
        }
        Ok(Sum {
            bytes,
            crc: crc.finalize(),
        })
    }
}

impl std::fmt::Display for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes with checksum {:08x}", self.bytes, self.crc)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;

    #[test]
    fn a_refused_directory_is_told_with_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        let refused = |path: &Path| Cache::open(path, 1).unwrap_err().to_string();
        let open = root.path().join("open");
        DirBuilder::new().mode(0o750).create(&open).unwrap();
        let told = refused(&open);
        assert!(told.contains("its mode is 750"), "{told}");
        assert!(told.contains("chmod 700"), "{told}");
        let link = root.path().join("link");
        std::os::unix::fs::symlink(root.path(), &link).unwrap();
        assert!(refused(&link).contains("is a link"));
        assert!(Cache::open(&root.path().join("own"), 1).is_ok());
    }

    #[test]
    fn what_a_process_that_is_gone_left_unfinished_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("compiled");
        let cache = Cache::open(&dir, 1 << 20).unwrap();
        for (name, age) in [("gone.new", 2 * ABANDONED), ("going.new", ABANDONED / 2)] {
            let file = File::create(dir.join(name)).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
        }
        cache.make_room().unwrap();
        assert!(!dir.join("gone.new").exists());
        assert!(dir.join("going.new").exists());
    }

    /// A cache with whole bytes, which are no code, under a key.
    fn filled(root: &Path, code: &[u8]) -> (Cache, Key) {
        let cache = Cache::open(&root.join("compiled"), 1 << 20).unwrap();
        let key = Key::of(&Engine::default(), Profile::Fast, "a");
        let sum = Sum::of(&mut &*code).unwrap().to_string();
        cache.write(&cache.code(&key), code).unwrap();
        cache.write(&cache.sum(&key), sum.as_bytes()).unwrap();
        (cache, key)
    }

    #[test]
    fn a_file_is_whole_by_its_length_and_sum() {
        let root = tempfile::tempdir().unwrap();
        let code = vec![7; 3 * CHUNK + 1];
        let (cache, key) = filled(root.path(), &code);
        let write = |bytes: &[u8]| cache.write(&cache.code(&key), bytes).unwrap();
        let sum = fs::read(cache.sum(&key)).unwrap();
        let is_damaged = || matches!(cache.checked(&key), Err(Entry::Damaged(_)));
        assert!(cache.checked(&key).is_ok());
        for place in [0, CHUNK, code.len() - 1] {
            let mut changed = code.clone();
            changed[place] ^= 1;
            write(&changed);
            assert!(is_damaged(), "{place}");
            write(&code[..place]);
            assert!(is_damaged(), "{place}");
        }
        write(&code);
        let longer = [&sum[..], b" "].concat();
        cache.write(&cache.sum(&key), &longer).unwrap();
        assert!(is_damaged());
        // Whole, and still no code: the engine says so, and it is removed.
        cache.write(&cache.sum(&key), &sum).unwrap();
        assert!(cache.load(&key, &Engine::default()).is_none());
        assert!(!cache.code(&key).exists() && !cache.sum(&key).exists());
    }

    #[test]
    fn a_file_that_others_own_or_can_reach_is_refused_with_what_to_do_and_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let (cache, key) = filled(root.path(), b"code");
        let files = [cache.code(&key), cache.sum(&key)];
        let refused = |part: &str| {
            let Err(Entry::Untrusted(reason)) = cache.checked(&key) else {
                panic!("{part} is trusted");
            };
            assert!(
                reason.contains(part) && reason.contains("delete it"),
                "{reason}"
            );
            assert!(
                reason.contains(&root.path().display().to_string()),
                "{reason}"
            );
            assert!(cache.load(&key, &Engine::default()).is_none());
            assert!(files.iter().all(|file| file.exists()));
        };
        for file in &files {
            for mode in [0o444, 0o420, 0o402, 0o644, 0o777] {
                fs::set_permissions(file, Permissions::from_mode(mode)).unwrap();
                refused(&format!("has the mode {mode:03o}"));
            }
            fs::set_permissions(file, Permissions::from_mode(0o400)).unwrap();
            assert!(cache.checked(&key).is_ok());
            let aside = root.path().join("aside");
            fs::rename(file, &aside).unwrap();
            std::os::unix::fs::symlink(&aside, file).unwrap();
            refused("is a link");
            fs::rename(&aside, file).unwrap();
            // Only root can give a file away.
            if std::os::unix::fs::chown(file, Some(4711), None).is_ok() {
                refused("belongs to user 4711");
                std::os::unix::fs::chown(file, Some(0), None).unwrap();
            }
            assert!(cache.checked(&key).is_ok());
        }
        // The directory is looked at each time, and not only when it is opened.
        let dir = root.path().join("compiled");
        fs::set_permissions(&dir, Permissions::from_mode(0o770)).unwrap();
        let Err(Entry::Untrusted(reason)) = cache.checked(&key) else {
            panic!("the directory is trusted");
        };
        assert!(reason.contains("chmod 700"), "{reason}");
    }
}
