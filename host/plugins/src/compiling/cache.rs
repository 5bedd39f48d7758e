//! The on-disk cache of compiled code, shared between processes.
//!
//! Each `KEY.cwasm` has a `KEY.sum` with its length and checksum, which is written after it. Code without a checksum,
//! with a different one, or that the engine rejects is removed and compiled again: a cache problem never fails a load.
//! [`super::trusted`] explains why the files may be run as machine code. This module maintains the invariants behind
//! that: only this user can access the directory, every file that is read belongs to this user and is inaccessible to
//! others, and no file is modified after it has its final name. A file that another user owns or can access is neither
//! used nor removed, because the operator has to investigate it.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use wasmtime::Engine;
use wasmtime::component::Component;

use super::key::CacheKey;
use super::trusted::{CheckedFile, CompiledCode};

/// The directory cannot be used as a cache.
#[derive(Debug, thiserror::Error)]
pub(super) enum CacheError {
    #[error("the directory cannot be used: {0}")]
    Io(#[from] io::Error),
    #[error("it is a symbolic link or not a directory; configure the directory itself")]
    NotADirectory,
    #[error(
        "it belongs to user {owner}, but this process runs as user {user}; configure a directory of this user"
    )]
    Foreign { owner: u32, user: u32 },
    #[error(
        "its mode is {mode:03o}, but it holds machine code and must not be accessible to others; run `chmod 700` on it"
    )]
    Open { mode: u32 },
}

/// Why a cache entry cannot be used.
enum EntryError {
    Missing,
    /// Truncated, corrupt or compiled for another engine: remove it and compile again.
    Damaged(String),
    /// Possibly written by another user: neither use nor remove it.
    Untrusted(String),
}

impl From<io::Error> for EntryError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => EntryError::Missing,
            _ => EntryError::Damaged(error.to_string()),
        }
    }
}

/// Age after which an unfinished temporary file belongs to a dead process.
const STALE_AFTER: Duration = Duration::from_secs(3600);
/// Upper bound on the size of a checksum file.
const SUM_BYTES: u64 = 1 << 10;
/// Bytes read at a time to compute a checksum.
const CHUNK: usize = 256 << 10;

/// A cache directory.
pub(super) struct Cache {
    /// Held open, so that it stays the directory that was checked.
    directory: File,
    path: PathBuf,
    /// The configured path, for messages.
    display_path: PathBuf,
    max_bytes: u64,
}

impl Cache {
    /// Opens or creates the directory. It holds at most `max_bytes` of compiled code.
    pub(super) fn open(path: &Path, max_bytes: u64) -> Result<Cache, CacheError> {
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
            display_path: path.to_owned(),
            path: fd_path(&directory, path.to_owned()),
            directory,
            max_bytes,
        })
    }

    /// Loads the code of this key if it exists, is intact and no other user can have written it.
    pub(super) fn load(&self, key: &CacheKey, engine: &Engine) -> Option<Component> {
        let loaded = self.open_checked(key).and_then(|file| {
            let component = file.load(engine);
            component.map_err(|error| EntryError::Damaged(format!("{error:#}")))
        });
        match loaded {
            Ok(component) => {
                self.mark_used(key);
                Some(component)
            }
            Err(EntryError::Missing) => None,
            Err(EntryError::Damaged(reason)) => {
                tracing::warn!("removing a damaged entry of the compiled-code cache: {reason}");
                self.remove(key);
                None
            }
            Err(EntryError::Untrusted(reason)) => {
                tracing::error!("ignoring an untrusted entry of the compiled-code cache: {reason}");
                None
            }
        }
    }

    /// Stores code under this key. A failure is logged and costs only time. An untrusted file under this key stays
    /// untouched.
    pub(super) fn store(&self, key: &CacheKey, code: &CompiledCode) {
        let code = code.bytes();
        if code.len() as u64 > self.max_bytes
            || matches!(self.open_checked(key), Err(EntryError::Untrusted(_)))
        {
            return;
        }
        let stored = self.write(&self.code_path(key), code).and_then(|()| {
            let sum = Checksum::compute(&mut &*code)?;
            self.write(&self.sum_path(key), sum.to_string().as_bytes())
        });
        // Evict after a failure, too: the disk may be full.
        let evicted = self.evict_lru();
        if let Err(error) = stored.and(evicted) {
            tracing::warn!("cannot store compiled code in the cache: {error}");
        }
    }

    fn code_path(&self, key: &CacheKey) -> PathBuf {
        self.path.join(format!("{}.cwasm", key.name()))
    }

    fn sum_path(&self, key: &CacheKey) -> PathBuf {
        self.path.join(format!("{}.sum", key.name()))
    }

    /// Opens the code of this key after checking the directory, the file's owner and mode, and its checksum.
    fn open_checked(&self, key: &CacheKey) -> Result<CheckedFile, EntryError> {
        if let Err(error) = check_directory(&self.directory) {
            let directory = self.display_path.display();
            return Err(EntryError::Untrusted(format!("{directory}: {error}")));
        }
        let mut expected = String::new();
        let sum_file = self.open_trusted(&self.sum_path(key))?;
        sum_file.take(SUM_BYTES).read_to_string(&mut expected)?;
        let path = self.code_path(key);
        let mut code = self.open_trusted(&path)?;
        let actual = Checksum::compute(&mut code)?;
        if actual.to_string() != expected {
            let expected = expected.escape_debug();
            return Err(EntryError::Damaged(format!(
                "expected {expected}, found {actual}"
            )));
        }
        let name = fd_path(&code, path);
        Ok(CheckedFile::new(code, name))
    }

    /// Opens a file of the cache after checking that it is a regular file that belongs to this user and is inaccessible
    /// to others.
    fn open_trusted(&self, path: &Path) -> Result<File, EntryError> {
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(path);
        let display_path = self
            .display_path
            .join(path.file_name().expect("an entry has a name"));
        let untrusted = |why: String| {
            let path = display_path.display();
            EntryError::Untrusted(format!(
                "{path} {why}; it was not written by this program for this user, delete it"
            ))
        };
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
                return Err(untrusted("is a symbolic link".to_owned()));
            }
            // This user can read every file that this program wrote.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(untrusted("cannot be read by this user".to_owned()));
            }
            Err(error) => return Err(error.into()),
        };
        let metadata = file.metadata()?;
        let user = rustix::process::geteuid().as_raw();
        if !metadata.is_file() {
            return Err(untrusted("is not a regular file".to_owned()));
        }
        if metadata.uid() != user {
            let owner = metadata.uid();
            return Err(untrusted(format!(
                "belongs to user {owner}, but this process runs as user {user}"
            )));
        }
        if metadata.mode() & 0o077 != 0 {
            let mode = metadata.mode() & 0o777;
            return Err(untrusted(format!("has mode {mode:03o}")));
        }
        Ok(file)
    }

    /// Writes a file under a temporary name and renames it, so that a file with its final name is complete.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        // Processes in two containers may have the same id; the time makes the name unique.
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let nanos = since_epoch.unwrap_or_default().as_nanos();
        let name = format!("{}-{nanos}-{count}.new", std::process::id());
        let temporary = self.path.join(name);
        let result = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)
            .and_then(|mut file| {
                file.write_all(bytes)?;
                file.set_permissions(Permissions::from_mode(0o400))
            })
            .and_then(|()| fs::rename(&temporary, path));
        result.inspect_err(|_| {
            // Report the first error, not one of the cleanup.
            let _ = fs::remove_file(&temporary);
        })
    }

    /// Sets the file's modification time, which orders eviction. Errors only make the order worse.
    fn mark_used(&self, key: &CacheKey) {
        let _ =
            File::open(self.code_path(key)).and_then(|file| file.set_modified(SystemTime::now()));
    }

    fn remove(&self, key: &CacheKey) {
        for path in [self.sum_path(key), self.code_path(key)] {
            // Another process may have removed it.
            let _ = fs::remove_file(path);
        }
    }

    /// Removes the least recently used entries until the rest fits, and stale temporary files. Processes that have mapped
    /// a removed file keep it.
    fn evict_lru(&self) -> io::Result<()> {
        let now = SystemTime::now();
        let (mut entries, mut total) = (Vec::new(), 0);
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            let Ok(metadata) = fs::symlink_metadata(&path) else {
                continue; // removed by another process
            };
            let used = metadata.modified()?;
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("cwasm") => {
                    total += metadata.len();
                    entries.push((used, metadata.len(), path));
                }
                Some("new") if now.duration_since(used).is_ok_and(|age| age > STALE_AFTER) => {
                    let _ = fs::remove_file(&path);
                }
                _ => {}
            }
        }
        entries.sort_unstable();
        for (_, bytes, path) in entries {
            if total <= self.max_bytes {
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
            .field("max_bytes", &self.max_bytes)
            .finish_non_exhaustive()
    }
}

/// A path of an open file or directory. On Linux it goes through the file descriptor, so it refers to the opened file
/// even if its path is replaced.
fn fd_path(open: &File, path: PathBuf) -> PathBuf {
    match cfg!(target_os = "linux") {
        true => PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd())),
        false => path,
    }
}

/// Checks that the directory belongs to this user and is inaccessible to others.
fn check_directory(directory: &File) -> Result<(), CacheError> {
    let metadata = directory.metadata()?;
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user {
        return Err(CacheError::Foreign {
            owner: metadata.uid(),
            user,
        });
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(CacheError::Open {
            mode: metadata.mode() & 0o777,
        });
    }
    Ok(())
}

/// Length and CRC-32 of a file.
struct Checksum {
    bytes: u64,
    crc: u32,
}

impl Checksum {
    fn compute(from: &mut impl Read) -> io::Result<Checksum> {
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
            crc.update(&chunk[..read]);
            bytes += read as u64;
        }
        Ok(Checksum {
            bytes,
            crc: crc.finalize(),
        })
    }
}

impl std::fmt::Display for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes with checksum {:08x}", self.bytes, self.crc)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clawhost_config::Profile;

    #[test]
    fn an_unusable_directory_is_rejected_with_a_remedy() {
        let root = tempfile::tempdir().unwrap();
        let open_error = |path: &Path| Cache::open(path, 1).unwrap_err().to_string();
        let open = root.path().join("open");
        DirBuilder::new().mode(0o750).create(&open).unwrap();
        let error = open_error(&open);
        assert!(error.contains("its mode is 750"), "{error}");
        assert!(error.contains("chmod 700"), "{error}");
        let link = root.path().join("link");
        std::os::unix::fs::symlink(root.path(), &link).unwrap();
        assert!(open_error(&link).contains("is a symbolic link"));
        assert!(Cache::open(&root.path().join("own"), 1).is_ok());
    }

    #[test]
    fn stale_temporary_files_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("compiled");
        let cache = Cache::open(&dir, 1 << 20).unwrap();
        for (name, age) in [
            ("gone.new", 2 * STALE_AFTER),
            ("going.new", STALE_AFTER / 2),
        ] {
            let file = File::create(dir.join(name)).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
        }
        cache.evict_lru().unwrap();
        assert!(!dir.join("gone.new").exists());
        assert!(dir.join("going.new").exists());
    }

    /// A cache with an intact entry of bytes that are not code.
    fn cache_with(root: &Path, code: &[u8]) -> (Cache, CacheKey) {
        let cache = Cache::open(&root.join("compiled"), 1 << 20).unwrap();
        let key = CacheKey::new(&Engine::default(), Profile::Fast, "a");
        let sum = Checksum::compute(&mut &*code).unwrap().to_string();
        cache.write(&cache.code_path(&key), code).unwrap();
        cache.write(&cache.sum_path(&key), sum.as_bytes()).unwrap();
        (cache, key)
    }

    #[test]
    fn damage_is_detected_by_length_and_checksum() {
        let root = tempfile::tempdir().unwrap();
        let code = vec![7; 3 * CHUNK + 1];
        let (cache, key) = cache_with(root.path(), &code);
        let write = |bytes: &[u8]| cache.write(&cache.code_path(&key), bytes).unwrap();
        let sum = fs::read(cache.sum_path(&key)).unwrap();
        let is_damaged = || matches!(cache.open_checked(&key), Err(EntryError::Damaged(_)));
        assert!(cache.open_checked(&key).is_ok());
        for position in [0, CHUNK, code.len() - 1] {
            let mut changed = code.clone();
            changed[position] ^= 1;
            write(&changed);
            assert!(is_damaged(), "{position}");
            write(&code[..position]);
            assert!(is_damaged(), "{position}");
        }
        write(&code);
        let longer = [&sum[..], b" "].concat();
        cache.write(&cache.sum_path(&key), &longer).unwrap();
        assert!(is_damaged());
        // An intact file that is not code: the engine rejects it and it is removed.
        cache.write(&cache.sum_path(&key), &sum).unwrap();
        assert!(cache.load(&key, &Engine::default()).is_none());
        assert!(!cache.code_path(&key).exists() && !cache.sum_path(&key).exists());
    }

    #[test]
    fn files_that_other_users_own_or_can_access_are_ignored_and_kept() {
        let root = tempfile::tempdir().unwrap();
        let (cache, key) = cache_with(root.path(), b"code");
        let files = [cache.code_path(&key), cache.sum_path(&key)];
        let assert_untrusted = |part: &str| {
            let Err(EntryError::Untrusted(reason)) = cache.open_checked(&key) else {
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
                assert_untrusted(&format!("has mode {mode:03o}"));
            }
            fs::set_permissions(file, Permissions::from_mode(0o400)).unwrap();
            assert!(cache.open_checked(&key).is_ok());
            let aside = root.path().join("aside");
            fs::rename(file, &aside).unwrap();
            std::os::unix::fs::symlink(&aside, file).unwrap();
            assert_untrusted("is a symbolic link");
            fs::rename(&aside, file).unwrap();
            // Only root can change the owner.
            if std::os::unix::fs::chown(file, Some(4711), None).is_ok() {
                assert_untrusted("belongs to user 4711");
                std::os::unix::fs::chown(file, Some(0), None).unwrap();
            }
            assert!(cache.open_checked(&key).is_ok());
        }
        // The directory is checked at each access and not only when it is opened.
        let dir = root.path().join("compiled");
        fs::set_permissions(&dir, Permissions::from_mode(0o770)).unwrap();
        let Err(EntryError::Untrusted(reason)) = cache.open_checked(&key) else {
            panic!("the directory is trusted");
        };
        assert!(reason.contains("chmod 700"), "{reason}");
    }
}
