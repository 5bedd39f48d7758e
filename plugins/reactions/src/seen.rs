//! What the rules see in a reaction, for the rules that settle a doubt. Decides nothing.

use crate::languages::Language;
use crate::reading::Reading;
use crate::scan::Scan;
use crate::speech::Speech;

/// A reaction with what the rules see in it.
pub(crate) struct Seen {
    pub(crate) language: Language,
    pub(crate) speech: Speech,
    /// With the cues that count.
    pub(crate) scan: Scan,
    /// Quotations in it.
    pub(crate) quotes: usize,
    /// The reply asked the person something.
    pub(crate) answers: bool,
    /// What the rules decide.
    pub(crate) reading: Option<Reading>,
}
