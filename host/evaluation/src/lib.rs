//! Evaluation of learning: personas, rule-based scorers, experiment arms and reports.
//!
//! This crate acts as a user. It reaches a server over HTTP only, like any chat client, and links no engine, judge,
//! trainer or journal, so an outside observer could repeat its measurements. A [`Persona`] holds conversations,
//! [`score`] rates the first reply of each, an arm ([`run_arm`]) holds many conversations with one endpoint, and the
//! demo ([`run_demo`]) compares an endpoint that trains with one that does not. The personalisation evaluation
//! ([`run_cell`], [`PersonalizeOutcome`]) does so for every training method, with several seeds. Students and teachers
//! talk to the embedded policy, people with a [`Wish`] to a real model, which [`calibrate`] measures beforehand.
//! [`ReactionReport`] counts how judges read labelled reactions.
//!
//! ```
//! use clawhost_evaluation::{Persona, Reaction, Student, score};
//!
//! // The same seeds give the same problem in the same words.
//! let task = Student.begin(1, 2);
//! assert_eq!(task, Student.begin(1, 2));
//!
//! let reply = "**Answer: 12**";
//! assert!(score(&task, reply).value < 0.5);
//! let reaction = Student.react(&task, reply, 3, false);
//! assert!(matches!(reaction, Reaction::Rewrite(_)));
//! ```

/// Words and phrases.
macro_rules! phrases {
    ($($phrase:literal)*) => {
        &[$($phrase),*]
    };
}

mod arms;
mod calibrate;
mod client;
mod conversation;
mod demo;
mod idle;
mod persona;
mod personalize;
mod plot;
pub mod probes;
pub mod problems;
mod reactions;
mod report;
mod scorer;
#[cfg(test)]
mod scripted;
mod seeds;
pub mod statistics;
mod wish;

pub use self::arms::{ArmEvent, ArmOptions, ArmRecord, run_arm};
pub use self::calibrate::{
    Calibration, CalibrationOptions, Learnable, SkillCalibration, WishCalibration, calibrate,
};
pub use self::client::{ChatClient, Endpoint, Reply, RequestError, RequestParams};
pub use self::conversation::{ConversationOptions, ConversationRecord, Ending, ReplyRecord};
pub use self::demo::{
    ArmSummary, Bounds, DemoEndpoints, DemoError, DemoOptions, DemoOutcome, Progress, Verdict,
    run_demo,
};
pub use self::idle::{Health, WaitError, WaitOptions, wait_until_idle};
pub use self::persona::{Key, Persona, Phase, Reaction, Student, Task, Teacher, Track};
pub use self::personalize::{
    Arm, Cell, CellError, CellRecord, Figures, PersonalizeOptions, PersonalizeOutcome, ProbeChange,
    ProbeResult, Target, TargetBounds, TrainingFacts, run_cell, run_pair,
};
pub use self::plot::{Band, Glyphs, Series, SvgOptions, TerminalOptions, escape, svg, terminal};
pub use self::reactions::{
    LabelCounts, ReactionAnswer, ReactionFigures, ReactionItem, ReactionReport, ReactionRole,
    ReactionsError, parse_reactions,
};
pub use self::report::{
    About, calibration_table, learning_curve, page, personalize_page, personalize_table, plot,
    table,
};
pub use self::scorer::{FormattingMarks, Score, score};
pub use self::wish::{Question, Wish};
