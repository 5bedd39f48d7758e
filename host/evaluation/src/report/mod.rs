//! Reports: tables and a plot for the terminal, and an HTML page.
//!
//! All functions depend only on a [`DemoOutcome`](crate::DemoOutcome) or a
//! [`PersonalizeOutcome`](crate::PersonalizeOutcome) and the caller's facts about the served model; nothing is measured
//! here, and unfavourable results are not omitted.

mod html;
mod page;
mod personalize;
mod text;

pub use self::page::{learning_curve, page};
pub use self::personalize::{personalize_page, personalize_table};
pub use self::text::{plot, table};

/// Facts about the run that only the caller knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct About {
    /// Facts about the served model (model, digest, judge, …), in display order.
    pub served: Vec<(String, String)>,
    /// The command line that reproduces the run.
    pub reproduce: String,
    /// The date of the run.
    pub date: String,
}

/// Window of the moving average in all plots.
const SMOOTHING: usize = 12;
