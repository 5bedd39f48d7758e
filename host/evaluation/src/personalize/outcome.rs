//! The finished cells of the evaluation.

use super::arm::Arm;
use super::cell::CellRecord;
use super::plan::PersonalizeOptions;
use crate::persona::Track;

/// All finished cells.
#[derive(Debug, Clone, PartialEq)]
pub struct PersonalizeOutcome {
    /// Options of the run.
    pub options: PersonalizeOptions,
    /// The finished cells, in the order of arms, personas and seeds.
    pub cells: Vec<CellRecord>,
    /// Failed cells, with the reason.
    pub failed: Vec<String>,
    /// Whether the run was interrupted before all cells finished.
    pub interrupted: bool,
    /// Total wall time in seconds.
    pub seconds: f64,
}

impl PersonalizeOutcome {
    /// Sorts the records, which may be in any order.
    pub fn new(
        options: PersonalizeOptions,
        mut cells: Vec<CellRecord>,
        failed: Vec<String>,
        interrupted: bool,
        seconds: f64,
    ) -> PersonalizeOutcome {
        cells.sort_by_key(|record| record.cell);
        PersonalizeOutcome {
            options,
            cells,
            failed,
            interrupted,
            seconds,
        }
    }

    /// The records of one arm with one persona, by seed.
    pub fn cells_of(&self, arm: Arm, track: Track) -> impl Iterator<Item = &CellRecord> {
        let matches = move |r: &&CellRecord| r.cell.arm == arm && r.cell.track == track;
        self.cells.iter().filter(matches)
    }
}
