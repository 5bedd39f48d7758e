//! The trait that each file format of step metrics implements.

use clawhost_journal::StepRecord;

/// File format of step metrics.
pub(super) trait LogFormat: std::fmt::Debug + Send {
    /// Path of the file inside the data directory.
    fn path(&self) -> &'static str;

    /// Length in bytes of the complete records of a file, and the id of the last step among them. None if the file has
    /// another format.
    fn last_complete_record(&self, bytes: &[u8]) -> Option<(usize, i64)>;

    /// The bytes that start a file.
    fn header(&self, first: &StepRecord) -> Vec<u8>;

    /// The record of a step.
    fn encode_step(&self, step: &StepRecord) -> Vec<u8>;
}
