//! Reports: tables and a plot for the terminal, and an HTML page.
//!
//! All functions depend only on a [`DemoOutcome`](crate::DemoOutcome) or a
//! [`PersonalizeOutcome`](crate::PersonalizeOutcome) and the caller's facts about the served model; nothing is measured
//! here, and unfavourable results are not omitted.

mod about;
mod calibration;
mod columns;
mod html;
mod page;
mod personalize;
mod text;

pub use self::about::About;
pub use self::calibration::calibration_table;
pub use self::page::{learning_curve, page};
pub use self::personalize::{personalize_page, personalize_table};
pub use self::text::{plot, table};
