//! What a person reads afterwards: a table and a plot for the terminal, and one page to keep.
//!
//! Everything here is a function of a [`DemoOutcome`](crate::DemoOutcome) or a
//! [`PersonalizeOutcome`](crate::PersonalizeOutcome) and of what the caller says about the served model; nothing is measured here and nothing is left out because it looks bad.

mod page;
mod personalize;
mod sheet;
mod text;

pub use self::page::page;
pub use self::personalize::{personalize_page, personalize_table};
pub use self::text::{plot, table};

/// What was served and how to do it again; only the caller knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct About {
    /// Facts about what was served (model, digest, judge, …), in the order in which they are shown.
    pub served: Vec<(String, String)>,
    /// The command line that does it again.
    pub reproduce: String,
    /// The day, as the caller writes it.
    pub date: String,
}

/// The curve that all plots show: the mean of the twelve conversations around each.
const SMOOTHING: usize = 12;
