//! Finds the directories of episodes, also those of other processes.
//!
//! A walk is bounded, and goes where something was created last first, so that what is left out is old.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::files::TRANSCRIPT;

/// Directories that a walk reads.
const MAX_VISITS: usize = 20_000;
/// Directories between the root and an episode.
const MAX_DEPTH: usize = 8;

/// What a walk found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Directories of episodes.
    pub(super) dirs: Vec<PathBuf>,
    /// Whether these are all.
    pub(super) complete: bool,
}

/// The newest `most` directories of episodes below `root`. Links are not followed.
pub(super) fn walk(root: &Path, most: usize) -> Found {
    let mut found = Found::default();
    let mut rest = vec![(root.to_owned(), 0)];
    let mut visits = 0;
    while let Some((dir, depth)) = rest.pop() {
        if visits == MAX_VISITS || found.dirs.len() == most {
            return found;
        }
        visits += 1;
        let mut children: Vec<(SystemTime, PathBuf)> = Vec::new();
        // A directory that was removed meanwhile, or that cannot be read, has no episodes.
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            if kind.is_dir() && depth < MAX_DEPTH {
                let modified = entry.metadata().and_then(|metadata| metadata.modified());
                children.push((modified.unwrap_or(SystemTime::UNIX_EPOCH), entry.path()));
            } else if kind.is_file() && entry.file_name() == TRANSCRIPT && depth > 0 {
                found.dirs.push(dir.clone());
            }
        }
        children.sort();
        rest.extend(children.into_iter().map(|(_, child)| (child, depth + 1)));
    }
    found.complete = true;
    found
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn episode(root: &Path, name: &str) {
        fs::create_dir_all(root.join(name)).unwrap();
        fs::write(root.join(name).join(TRANSCRIPT), "").unwrap();
    }

    #[test]
    fn the_newest_are_found_first_and_links_are_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for (age, name) in [(3, "step-1"), (1, "step-2"), (2, "step-3")] {
            episode(root, &format!("{name}/a/0"));
            let time = SystemTime::now() - Duration::from_secs(age * 60);
            let dir = fs::File::open(root.join(name)).unwrap();
            dir.set_modified(time).unwrap();
        }
        #[cfg(unix)]
        std::os::unix::fs::symlink(root.join("step-1"), root.join("link")).unwrap();
        let names = |most| -> Vec<String> {
            let dirs = walk(root, most).dirs;
            let name = |dir: &PathBuf| dir.strip_prefix(root).unwrap().display().to_string();
            dirs.iter().map(name).collect()
        };
        assert_eq!(names(9), ["step-2/a/0", "step-3/a/0", "step-1/a/0"]);
        assert_eq!(names(2), ["step-2/a/0", "step-3/a/0"]);
        assert!(walk(root, 9).complete && !walk(root, 2).complete);
    }
}
