//! What a reaction says about the reply.

/// The reading of a reaction.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// -1 or +1.
    pub score: f32,
    /// What the reaction is.
    pub kind: Kind,
    /// Why: the kind and the words that decided.
    pub reason: String,
    /// It names what the reply should contain, avoid or change.
    pub is_concrete: bool,
}

/// What a reaction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Thanks, praise, agreement, or the next step.
    Acceptance,
    /// Accepts, and says how further replies should be.
    StandingWish,
    /// The reply is bad.
    Complaint,
    /// The reply missed a part of the request.
    Miss,
    /// The right answer is given.
    Correction,
    /// Another form is wanted.
    Form,
    /// The reply is wanted again.
    Redo,
    /// The reply is declined.
    Refusal,
    /// Mockery.
    Sarcasm,
    /// A tool reports success.
    ToolPassed,
    /// A tool reports a failure.
    ToolFailed,
}

impl Kind {
    /// Its name in reasons.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Acceptance => "acceptance",
            Kind::StandingWish => "accepts, with a wish for later",
            Kind::Complaint => "complaint",
            Kind::Miss => "misses the request",
            Kind::Correction => "correction",
            Kind::Form => "another form wanted",
            Kind::Redo => "wanted again",
            Kind::Refusal => "declined",
            Kind::Sarcasm => "sarcasm",
            Kind::ToolPassed => "tool succeeded",
            Kind::ToolFailed => "tool failed",
        }
    }
}
