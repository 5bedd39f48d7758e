//! A teacher at an endpoint: what it is asked, what it says, and what becomes of an answer that cannot be used.
//!
//! An answer that does not come is no answer of zero: the reply has no teacher in this step, with the reason. When
//! none comes at all because the endpoint is away, there is no step; the samples are as good as before and wait. How
//! the endpoint is reached is not known here: the program hands in what reaches it.

use clawhost_policy::{Candidates, Scored};

use crate::packing::Laid;
use crate::update::{Broken, Task};

/// A recorded reply after a prompt with a hint.
#[derive(Debug, Clone, Copy)]
pub struct TeacherQuestion<'a> {
    /// Token ids of the prompt that the teacher reads.
    pub prompt: &'a [u32],
    /// Token ids of the reply.
    pub reply: &'a [u32],
    /// So many of the likeliest tokens of each position are wanted as well.
    pub top: usize,
}

/// What a teacher finds of a reply, at temperature 1 and in nats.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TeacherAnswer {
    /// One per token of the reply; NaN where it has no value.
    pub logprobs: Vec<f32>,
    /// The likeliest tokens of each position, best first, `[reply tokens, top]`.
    pub top: Vec<u32>,
    /// Their log-probs.
    pub top_logprobs: Vec<f32>,
}

/// Why a teacher has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TeacherSilent {
    /// It cannot be asked at the moment; the same question may be answered later.
    #[error("{0}")]
    Away(String),
    /// It does not answer this question.
    #[error("{0}")]
    Refused(String),
}

/// A teacher at an endpoint, with the policy's vocabulary.
pub trait Teacher: std::fmt::Debug + Send + Sync {
    /// Scores a recorded reply. Blocks until it is scored.
    ///
    /// # Errors
    /// Why there is no answer.
    fn score(&self, question: TeacherQuestion<'_>) -> Result<TeacherAnswer, TeacherSilent>;
}

/// What a teacher said of a reply, or why it said nothing.
pub(super) type Said = Result<Scored, String>;

/// Asks about one reply after the other. Once the endpoint is away the rest is not asked.
pub(super) fn ask(task: &Task<'_>, laid: &[Laid], top: Option<usize>) -> Result<Vec<Said>, Broken> {
    let Some(teacher) = task.elsewhere else {
        return Err(Broken::Teacher(
            "training.teacher.from is \"endpoint\", and this command does not reach it".to_owned(),
        ));
    };
    let mut all = Vec::with_capacity(laid.len());
    let mut away: Option<String> = None;
    for one in laid {
        task.check_stop()?;
        all.push(match &away {
            Some(reason) => Err(reason.clone()),
            None => match ask_one(task, teacher, one, top) {
                Err(TeacherSilent::Away(reason)) => {
                    away = Some(reason.clone());
                    Err(reason)
                }
                Err(TeacherSilent::Refused(reason)) => Err(reason),
                Ok(scored) => Ok(scored),
            },
        });
    }
    match away {
        Some(reason) if all.iter().all(Result::is_err) => Err(Broken::Teacher(reason)),
        _ => Ok(all),
    }
}

fn ask_one(
    task: &Task<'_>,
    teacher: &dyn Teacher,
    laid: &Laid,
    top: Option<usize>,
) -> Result<Scored, TeacherSilent> {
    let sequence = laid.sequence(top);
    let refused = |reason: String| Err(TeacherSilent::Refused(reason));
    if sequence.temperature != 1.0 {
        return refused(format!(
            "the endpoint scores at temperature 1, the reply was sampled at {}",
            sequence.temperature
        ));
    }
    let top = match sequence.candidates {
        Candidates::None => 0,
        Candidates::Top(k) => k,
        Candidates::Given { .. } => {
            return refused(
                "the endpoint tells of its own likeliest tokens only, not of the policy's"
                    .to_owned(),
            );
        }
    };
    let (prompt, reply) = sequence.tokens.split_at(sequence.start);
    let answer = teacher.score(TeacherQuestion { prompt, reply, top })?;
    let TeacherAnswer {
        mut logprobs,
        top: candidates,
        top_logprobs,
    } = answer;
    if logprobs.len() != reply.len() {
        let (found, expected) = (logprobs.len(), reply.len());
        return refused(format!(
            "the endpoint gave {found} log-probs for {expected} tokens"
        ));
    }
    for value in &mut logprobs {
        if !is_logprob(*value) {
            *value = f32::NAN;
        }
    }
    let vocab = task.model.config().vocab_size;
    let expected = reply.len() * top;
    if candidates.len() != expected
        || top_logprobs.len() != expected
        || candidates.iter().any(|id| *id as usize >= vocab)
        || !top_logprobs.iter().all(|value| is_logprob(*value))
    {
        return refused(format!(
            "the endpoint did not give {top} likeliest tokens of each position with their log-probs"
        ));
    }
    Ok(Scored {
        entropies: Vec::new(),
        candidates,
        candidate_logprobs: top_logprobs,
        logprobs,
    })
}

fn is_logprob(value: f32) -> bool {
    value.is_finite() && value <= 1e-3
}
