//! The journal as JSON lines.

crate::words::words! {
    /// What to export.
    Export {
        /// One line per finished turn of a conversation.
        Conversations = "conversations",
        /// One line per verdict.
        Verdicts = "verdicts",
        /// One line per sample, with its token data.
        Samples = "samples",
        /// One line per step.
        Steps = "steps",
        /// One line per turn of any kind and state, with all that is known of it.
        Turns = "turns",
    }
}
