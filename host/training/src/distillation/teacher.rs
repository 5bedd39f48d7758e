//! A teacher at an endpoint: its request and response types. The transport is not part of this crate; the program provides
//! an implementation of [`RemoteTeacher`].

/// A recorded reply to score after a prompt with a hint.
#[derive(Debug, Clone, Copy)]
pub struct TeacherRequest<'a> {
    /// Token ids of the prompt.
    pub prompt: &'a [u32],
    /// Token ids of the reply.
    pub reply: &'a [u32],
    /// Number of most likely tokens to return for each position.
    pub top: usize,
}

/// A teacher's log-probs of a reply, at temperature 1 and in nats.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TeacherScores {
    /// One per token of the reply; NaN without a value.
    pub logprobs: Vec<f32>,
    /// The most likely tokens of each position, best first, `[reply tokens, top]`.
    pub top: Vec<u32>,
    /// Their log-probs.
    pub top_logprobs: Vec<f32>,
}

/// Why a teacher returned no scores.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TeacherError {
    /// The endpoint is unavailable; the same request may succeed later.
    #[error("{0}")]
    Unavailable(String),
    /// The endpoint rejects this request, or its response is unusable.
    #[error("{0}")]
    Rejected(String),
}

/// A teacher at an endpoint, with the policy's vocabulary.
pub trait RemoteTeacher: std::fmt::Debug + Send + Sync {
    /// Scores a recorded reply. Blocks until the scores arrive.
    ///
    /// # Errors
    /// The endpoint is unavailable or rejects the request.
    fn score(&self, request: TeacherRequest<'_>) -> Result<TeacherScores, TeacherError>;
}
