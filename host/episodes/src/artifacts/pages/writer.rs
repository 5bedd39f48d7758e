//! Writes the pages of a root: what is known of its episodes, and which pages are due.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clawhost_journal::now_ms;

use super::super::entry::{Entry, State};
use super::super::files::{INDEX, PAGE, read_ends, replace};
use super::super::walk::walk;
use super::html::REFRESH;
use super::{Change, overview, page};

/// Episodes that are kept in memory and counted; of older ones only the files remain.
const MAX_KEPT: usize = 5000;
/// Time of a pass that goes to the pages of running episodes. The rest of them is due in the next pass.
const RUNNING_BUDGET: Duration = Duration::from_millis(100);
/// Time between two walks, and how many times the duration of a walk it is at least.
const WALK_EVERY: (Duration, u32) = (Duration::from_secs(10), 50);

/// Writes the pages of one root.
pub(super) struct Writer {
    root: PathBuf,
    known: HashMap<PathBuf, Entry>,
    /// Episodes that this process runs.
    own: HashSet<PathBuf>,
    /// Running episodes whose pages are due.
    due: BTreeSet<PathBuf>,
    /// The one of them whose page was written last: they take turns.
    last: PathBuf,
    next_walk: Instant,
    /// Whether a write has failed, which is logged once.
    failed: bool,
}

impl Writer {
    /// A writer that knows nothing yet: its first pass looks at the directory.
    pub(super) fn new(root: PathBuf) -> Self {
        Self {
            root,
            known: HashMap::new(),
            own: HashSet::new(),
            due: BTreeSet::new(),
            last: PathBuf::new(),
            next_walk: Instant::now(),
            failed: false,
        }
    }

    /// Time until the next walk.
    pub(super) fn until_walk(&self) -> Duration {
        self.next_walk.saturating_duration_since(Instant::now())
    }

    /// Writes the pages of what changed, and the overview. `live`: it is not the last pass.
    pub(super) fn pass(&mut self, changes: BTreeMap<PathBuf, Change>, live: bool) {
        let mut changed = !changes.is_empty();
        for (dir, change) in changes {
            self.apply(dir, change);
        }
        if !live || self.until_walk().is_zero() {
            changed |= self.walk();
        }
        let started = Instant::now();
        while !self.due.is_empty() && (!live || started.elapsed() < RUNNING_BUDGET) {
            let after = (Bound::Excluded(&self.last), Bound::Unbounded);
            let next = self
                .due
                .range::<PathBuf, _>(after)
                .next()
                .or(self.due.first());
            let Some(dir) = next.cloned() else {
                break;
            };
            self.due.remove(&dir);
            self.write_page(&dir);
            self.last = dir;
        }
        self.forget_old();
        let index = self.root.join(INDEX);
        // Of running ones the durations change.
        changed |= self.known.values().any(|entry| entry.state.is_running());
        if !changed && live && index.exists() {
            return;
        }
        let episodes = self.known.iter();
        let episodes = episodes
            .map(|(dir, entry)| (dir.as_path(), entry))
            .collect();
        let overview = overview::render(&self.root, episodes, live, now_ms());
        self.write(&index, &overview);
    }

    fn apply(&mut self, dir: PathBuf, change: Change) {
        match change {
            Change::Running(replies) => {
                let known = self.known.entry(dir.clone());
                let entry = known.or_insert_with_key(|dir| Entry::read(&self.root, dir));
                entry.state = State::Running {
                    steps: Some(replies),
                };
                self.own.insert(dir.clone());
                self.due.insert(dir);
            }
            Change::Ended => {
                self.own.remove(&dir);
                self.due.remove(&dir);
                self.known
                    .insert(dir.clone(), Entry::read(&self.root, &dir));
                self.write_page(&dir);
            }
        }
    }

    /// Reads what other processes wrote, and writes pages that a killed process did not. Returns whether something changed.
    fn walk(&mut self) -> bool {
        let started = Instant::now();
        let found = walk(&self.root, MAX_KEPT);
        let before = self.known.len();
        if found.complete {
            let dirs: HashSet<&PathBuf> = found.dirs.iter().collect();
            self.known
                .retain(|dir, _| dirs.contains(dir) || self.own.contains(dir));
        }
        let mut changed = self.known.len() != before;
        for dir in found.dirs {
            let is_final = |entry: &Entry| entry.state.is_final();
            if self.own.contains(&dir) || self.known.get(&dir).is_some_and(is_final) {
                continue;
            }
            let entry = Entry::read(&self.root, &dir);
            let running = entry.state.is_running();
            changed |= self.known.insert(dir.clone(), entry.clone()) != Some(entry);
            // The process of a running one writes its page.
            if !running && is_out_of_date(&dir.join(PAGE)) {
                self.write_page(&dir);
            }
        }
        let (least, factor) = WALK_EVERY;
        self.next_walk = Instant::now() + least.max(started.elapsed() * factor);
        changed
    }

    fn write_page(&mut self, dir: &Path) {
        let Some(entry) = self.known.get(dir) else {
            return;
        };
        let below = dir.strip_prefix(&self.root).unwrap_or(dir);
        let up = "../".repeat(below.components().count());
        let page = page::render(dir, &up, entry, now_ms());
        self.write(&dir.join(PAGE), &page);
    }

    fn write(&mut self, file: &Path, page: &str) {
        if let Err(error) = replace(file, page.as_bytes())
            && !self.failed
        {
            self.failed = true;
            tracing::warn!("cannot write {}: {error}", file.display());
        }
    }

    /// Forgets the oldest episodes that have ended.
    fn forget_old(&mut self) {
        if self.known.len() <= MAX_KEPT {
            return;
        }
        let ended = self.known.iter();
        let ended = ended.filter(|(_, entry)| !entry.state.is_running());
        let mut ended: Vec<(i64, PathBuf)> = ended
            .map(|(dir, entry)| (entry.started_ms, dir.clone()))
            .collect();
        ended.sort();
        let surplus = self.known.len() - MAX_KEPT;
        for (_, dir) in ended.iter().take(surplus) {
            self.known.remove(dir);
        }
    }
}

/// Whether the page of an episode that ended is missing, or still follows it.
fn is_out_of_date(page: &Path) -> bool {
    read_ends(page, 2048).map_or(true, |page| page.head.contains(REFRESH))
}
