//! What the trainer does about what is served: it takes up what stands, has its steps served, and lets go of what nobody
//! needs any more. Who may change what is served, and what that means, is said in [`crate::releases`].

use clawhost_journal::Standing;

use crate::current::{Current, take_up};
use crate::error::TrainingError;
use crate::releases::row_of;
use crate::trainer::Trainer;

impl Trainer {
    /// Follows a change of what is served that a person made, or another process.
    pub(crate) fn follow(&mut self) -> Result<(), TrainingError> {
        let standing = self.journal.standing()?;
        if standing.line == self.line && standing.head == self.current.version {
            return Ok(());
        }
        let adapters = self.journal.adapters()?;
        self.current = take_up(
            &self.journal,
            &self.engine,
            &self.checkpoints,
            &self.options,
            row_of(standing.head, &adapters),
            &adapters,
        )?;
        self.line = standing.line;
        let _alone = self.releases.alone();
        // Whoever changed it has had it served, unless that was another process; and may have changed it again.
        let standing = self.journal.standing()?;
        if self.engine.active().version == standing.version {
            return Ok(());
        }
        self.publish(&standing)
    }

    /// Has the engine serve what stands, and asks it what it serves now.
    pub(crate) fn publish(&self, standing: &Standing) -> Result<(), TrainingError> {
        let version = standing.version;
        if version == 0 && self.engine.active().version == 0 {
            // What the operator handed in as version 0 stays as it is.
            return Ok(());
        }
        if version == 0 || version != self.current.version {
            return self.releases.serve(version);
        }
        let Current {
            digest, learned, ..
        } = &self.current;
        self.releases.serve_this(version, digest, learned.clone())
    }

    /// Removes the old checkpoints that nobody needs any more. What cannot be removed now stays until the next time.
    pub(crate) fn let_go(&self) {
        let let_go = || {
            let rows = self.journal.adapters()?;
            let needed = self.releases.needed()?;
            let retention = self.options.retention();
            self.checkpoints.retain(&rows, retention, &needed)
        };
        if let Err(error) = let_go() {
            tracing::warn!(%error, "old checkpoints were not removed");
        }
    }
}
