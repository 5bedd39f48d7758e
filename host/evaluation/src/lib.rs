//! Personas, fixed scorers, arms and reports: does it learn?
//!
//! This crate stands where a user stands. It reaches a server over HTTP alone, as any chat client
//! would, and links no engine, judge, trainer or journal; what it reports is what somebody outside
//! could have measured. The order of things: a [`Persona`] holds conversations, a [`score`] values the
//! first reply of each, an arm ([`run_arm`]) holds many of them with one endpoint, and the
//! demonstration ([`run_demo`]) compares an endpoint that learns with one that does not. The evaluation of
//! personalisation ([`run_cell`], [`PersonalizeOutcome`]) does so for every way of learning, with several seeds.

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
mod persona;
mod personalize;
mod plot;
mod report;
mod scorer;
#[cfg(test)]
mod scripted;
mod seeds;
mod settling;
pub mod statistics;

pub use self::arms::{ArmEvent, ArmOptions, ArmRecord, run_arm};
pub use self::client::{Asking, ChatClient, Endpoint, Reply, RequestError};
pub use self::conversation::{ConversationRecord, Ending, Manner, ReplyRecord};
pub use self::demo::{
    ArmSummary, Bounds, DemoEndpoints, DemoError, DemoOptions, DemoOutcome, Progress, Verdict,
    run_demo,
};
pub use self::persona::{Key, Persona, Reaction, Student, Task, Teacher, Track, UnknownTrack};
pub use self::personalize::{
    Aim, AimBounds, Arm, Cell, CellError, CellRecord, Change, Figures, PersonalizeOptions,
    PersonalizeOutcome, Probed, TrainingFacts, UnknownArm, run_cell,
};
pub use self::plot::{Band, Glyphs, Series, SvgOptions, TerminalOptions, svg, terminal};
pub use self::report::{About, page, personalize_page, personalize_table, plot, table};
pub use self::scorer::{Marks, Score, score};
pub use self::settling::{Health, Patience, SettleError, settle};
