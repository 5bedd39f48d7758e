//! Scoring replies with a teacher at an endpoint, and the validation of its scores.
//!
//! A missing score is never treated as zero: the reply has no teacher in this step, and the reason is recorded. If the
//! endpoint is unavailable and no reply gets scores, the step is not made and the samples stay queued.

use clawhost_engine::{Candidates, SequenceScores};

use crate::distillation::teacher::{RemoteTeacher, TeacherError, TeacherRequest, TeacherScores};
use crate::packing::ModelInput;
use crate::update_task::{UpdateError, UpdateTask};

/// The scores of a reply, or why there are none.
pub(super) type TeacherResult = Result<SequenceScores, String>;

/// Scores replies one after the other. Once the endpoint is unavailable, the remaining replies are not requested.
pub(super) fn score_replies(
    task: &UpdateTask<'_>,
    inputs: &[ModelInput],
    top: Option<usize>,
) -> Result<Vec<TeacherResult>, UpdateError> {
    let Some(teacher) = task.remote_teacher else {
        return Err(UpdateError::Teacher(
            "training.teacher.source is \"endpoint\", which this command does not support"
                .to_owned(),
        ));
    };
    let mut results = Vec::with_capacity(inputs.len());
    let mut unavailable: Option<String> = None;
    for input in inputs {
        task.check_stop()?;
        results.push(match &unavailable {
            Some(reason) => Err(reason.clone()),
            None => match score_reply(task, teacher, input, top) {
                Err(TeacherError::Unavailable(reason)) => {
                    unavailable = Some(reason.clone());
                    Err(reason)
                }
                Err(TeacherError::Rejected(reason)) => Err(reason),
                Ok(scored) => Ok(scored),
            },
        });
    }
    match unavailable {
        Some(reason) if results.iter().all(Result::is_err) => Err(UpdateError::Teacher(reason)),
        _ => Ok(results),
    }
}

fn score_reply(
    task: &UpdateTask<'_>,
    teacher: &dyn RemoteTeacher,
    input: &ModelInput,
    top: Option<usize>,
) -> Result<SequenceScores, TeacherError> {
    let sequence = input.sequence(top);
    let rejected = |reason: String| Err(TeacherError::Rejected(reason));
    if sequence.temperature != 1.0 {
        return rejected(format!(
            "the endpoint scores at temperature 1, but the reply was sampled at {}",
            sequence.temperature
        ));
    }
    let top = match sequence.candidates {
        Candidates::None => 0,
        Candidates::Top(k) => k,
        Candidates::Fixed { .. } => {
            return rejected(
                "the endpoint returns only its own most likely tokens, not the policy's".to_owned(),
            );
        }
    };
    let (prompt, reply) = sequence.tokens.split_at(sequence.start);
    let TeacherScores {
        mut logprobs,
        top: candidates,
        top_logprobs,
    } = teacher.score(TeacherRequest { prompt, reply, top })?;
    if logprobs.len() != reply.len() {
        let (found, expected) = (logprobs.len(), reply.len());
        return rejected(format!(
            "the endpoint returned {found} log-probs for {expected} tokens"
        ));
    }
    for value in &mut logprobs {
        if !is_logprob(*value) {
            *value = f32::NAN;
        }
    }
    let vocab = task.backend.model().config().vocab_size;
    let expected = reply.len() * top;
    if candidates.len() != expected
        || top_logprobs.len() != expected
        || candidates.iter().any(|id| *id as usize >= vocab)
        || !top_logprobs.iter().all(|value| is_logprob(*value))
    {
        return rejected(format!(
            "the endpoint did not return the {top} most likely tokens of each position with their log-probs"
        ));
    }
    Ok(SequenceScores {
        entropies: Vec::new(),
        candidates,
        candidate_logprobs: top_logprobs,
        logprobs,
    })
}

fn is_logprob(value: f32) -> bool {
    value.is_finite() && value <= 1e-3
}
