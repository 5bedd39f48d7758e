//! What is kept of episodes when asked: a directory for each, and pages to watch them.
//!
//! The directory of an episode has its transcript, its outcome, and what capabilities put there, such as the screenshots of a
//! display. Nothing of that is ever replaced: an episode that is run again gets a directory of its own. The pages are made
//! from these files and can be made again at any time. Nothing here is read back by training or evaluation.

mod entry;
mod episode;
mod files;
mod images;
mod pages;
mod walk;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use episode::Artifacts;
pub use files::file_url;

use pages::Pages;

/// The directory below which episodes are kept. While a clone of it lives, its pages follow the episodes; the last one to be
/// dropped brings them up to date, which takes a moment. Several processes may use the same directory.
#[derive(Debug, Clone)]
pub struct ArtifactsRoot {
    pages: Arc<Pages>,
}

impl ArtifactsRoot {
    /// Creates the directory if it does not exist, and starts to keep its pages up to date.
    ///
    /// # Errors
    /// The directory cannot be created, or there is no thread for the pages.
    pub fn open(root: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(root)?;
        // Other programs, and capabilities, may have another working directory.
        let pages = Arc::new(Pages::start(root.canonicalize()?)?);
        Ok(Self { pages })
    }

    /// The page that lists the episodes. It exists shortly after the directory is opened.
    pub fn index(&self) -> PathBuf {
        self.pages.root().join(files::INDEX)
    }

    /// Creates the directory of an episode, named as the episode, with a number if that exists.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn create(&self, episode: &str, task: &str) -> io::Result<Artifacts> {
        Artifacts::create(self, episode, task)
    }

    fn pages(&self) -> &Pages {
        &self.pages
    }
}
