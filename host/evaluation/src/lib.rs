//! Evaluation of learning: personas, rule-based scorers, experiment arms and reports.
//!
//! This crate acts as a user. It reaches a server over HTTP only, like any chat client, and links no engine, judge,
//! trainer or journal, so an outside observer could repeat its measurements. A [`Persona`] holds conversations,
//! [`score`] rates the first reply of each, an arm ([`run_arm`]) holds many conversations with one endpoint, and the
//! demo ([`run_demo`]) compares an endpoint that trains with one that does not. The personalisation evaluation
//! ([`run_cell`], [`PersonalizeOutcome`]) does so for every training method, with several seeds.

mod arms;
#[cfg(test)]
mod calibration;
mod client;
mod conversation;
mod demo;
#[cfg(test)]
mod demo_over_http;
#[cfg(test)]
mod demo_recorded;
mod idle;
mod persona;
mod personalize;
mod plot;
mod report;
mod scorer;
#[cfg(test)]
mod scripted;
mod seeds;
pub mod statistics;

pub use self::arms::{ArmEvent, ArmOptions, ArmRecord, run_arm};
pub use self::client::{ChatClient, Endpoint, Reply, RequestError, RequestParams};
pub use self::conversation::{ConversationOptions, ConversationRecord, Ending, ReplyRecord};
pub use self::demo::{
    ArmSummary, Bounds, DemoEndpoints, DemoError, DemoOptions, DemoOutcome, Progress, Verdict,
    run_demo,
};
pub use self::idle::{Health, WaitError, WaitOptions, wait_until_idle};
pub use self::persona::{Key, Persona, Reaction, Student, Task, Teacher, Track, UnknownTrack};
pub use self::personalize::{
    Arm, Cell, CellError, CellRecord, Figures, PersonalizeOptions, PersonalizeOutcome, ProbeChange,
    ProbeResult, Target, TargetBounds, TrainingFacts, UnknownArm, run_cell,
};
pub use self::plot::{Band, Glyphs, Series, SvgOptions, TerminalOptions, svg, terminal};
pub use self::report::{
    About, learning_curve, page, personalize_page, personalize_table, plot, table,
};
pub use self::scorer::{FormattingMarks, Score, score};
