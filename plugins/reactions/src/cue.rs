//! What a phrase of a reaction tells.

/// The meaning of a phrase. A table lists the phrases of a language in matching order: a phrase consumes its words, so that
/// "thanks for nothing" is never thanks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cue {
    /// Consumes its words and means nothing.
    Skip,
    /// Praise or thanks that mean the opposite, and mockery.
    Mock,
    /// Mockery if nothing else is said, praise otherwise.
    MockWeak,
    /// The reply is bad.
    Blame,
    /// A fact that shows that the reply missed the request.
    Missed,
    /// The right answer is given.
    Fix,
    /// The reply is wanted again.
    Redo,
    /// The reply is wanted in another form.
    Form,
    /// The reply is declined.
    Refusal,
    /// Thanks that decline, unless something is accepted after it.
    RefusalWeak,
    /// Thanks.
    Thanks,
    /// The reply is good.
    Praise,
    /// What the reply proposed works.
    Works,
    /// The reply is right or taken.
    Accept,
    /// The person understands.
    Understood,
    /// The next step of the same work.
    Next,
    /// A wish about all further replies.
    Standing,
    /// Nothing is decided yet.
    Unsure,
    /// A contrast: what comes after it counts.
    But,
    /// A change of the topic.
    Aside,
    /// A question.
    Asking,
    /// A new task.
    Task,
    /// A negation.
    Not,
}

impl Cue {
    /// Its name for the model.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Cue::Skip => "skip",
            Cue::Mock => "mock",
            Cue::MockWeak => "mockweak",
            Cue::Blame => "blame",
            Cue::Missed => "missed",
            Cue::Fix => "fix",
            Cue::Redo => "redo",
            Cue::Form => "form",
            Cue::Refusal => "refusal",
            Cue::RefusalWeak => "refusalweak",
            Cue::Thanks => "thanks",
            Cue::Praise => "praise",
            Cue::Works => "works",
            Cue::Accept => "accept",
            Cue::Understood => "understood",
            Cue::Next => "next",
            Cue::Standing => "standing",
            Cue::Unsure => "unsure",
            Cue::But => "but",
            Cue::Aside => "aside",
            Cue::Asking => "asking",
            Cue::Task => "task",
            Cue::Not => "not",
        }
    }

    /// Speaks against the reply.
    pub(crate) fn is_negative(self) -> bool {
        matches!(
            self,
            Cue::Mock
                | Cue::Blame
                | Cue::Missed
                | Cue::Fix
                | Cue::Redo
                | Cue::Form
                | Cue::Refusal
                | Cue::RefusalWeak
        )
    }

    /// Speaks for the reply.
    pub(crate) fn is_positive(self) -> bool {
        matches!(
            self,
            Cue::Thanks | Cue::Praise | Cue::Works | Cue::Accept | Cue::Understood | Cue::Next
        )
    }
}
