//! The replies of a soak against the journal, and their log-probs against the weights of their version.

use anyhow::{Context, Result};
use clawhost_engine::{Candidates, Sequence};
use clawhost_journal::TurnId;
use clawhost_model::TrainedWeights;
use serde_json::{Value, json};

use super::super::figures::number;
use super::client::CheckedReply;
use crate::serve::Server;

/// Replies whose log-probs are recomputed.
const RECOMPUTED: usize = 24;

/// What a check found.
#[derive(Debug, Default)]
pub(super) struct CheckedReplies {
    looked_up: usize,
    recomputed: usize,
    /// Tokens of the recomputed replies.
    tokens: usize,
    /// Sum and maximum of the absolute differences of their log-probs, in nats.
    sum: f64,
    most: f64,
    /// Mismatches, one line each.
    wrong: Vec<String>,
}

impl CheckedReplies {
    /// Compares replies with their records, and recomputes the log-probs of some. `weights_of` loads the weights of a
    /// version.
    ///
    /// # Errors
    /// The journal cannot be read, or a version cannot be loaded or scored.
    pub(super) fn check(
        server: &Server,
        answered: &[CheckedReply],
        weights_of: impl Fn(u64) -> Result<TrainedWeights>,
    ) -> Result<Self> {
        let mut checked = Self {
            looked_up: answered.len(),
            ..Self::default()
        };
        let every = answered.len().div_ceil(RECOMPUTED).max(1);
        // By version, so that the weights of each are loaded once.
        let mut ordered: Vec<&CheckedReply> = answered.iter().collect();
        ordered.sort_by_key(|reply| reply.version);
        let mut loaded: Option<(u64, TrainedWeights)> = None;
        for (index, reply) in ordered.into_iter().enumerate() {
            checked.reply(server, reply, index % every == 0, |version| {
                let weights = match loaded.take() {
                    Some((of, weights)) if of == version => weights,
                    _ => weights_of(version)?,
                };
                Ok(loaded.insert((version, weights)).1.clone())
            })?;
        }
        Ok(checked)
    }

    fn reply(
        &mut self,
        server: &Server,
        reply: &CheckedReply,
        recompute: bool,
        weights_of: impl FnOnce(u64) -> Result<TrainedWeights>,
    ) -> Result<()> {
        let id: TurnId =
            (reply.turn.parse().ok()).with_context(|| format!("turn {:?}", reply.turn))?;
        let Some(turn) = server.journal().turn(id)? else {
            self.wrong.push(format!("turn {id} is not in the journal"));
            return Ok(());
        };
        if turn.adapter_version != reply.version {
            self.wrong.push(format!(
                "turn {id}: version {} in the header, {} in the journal",
                reply.version, turn.adapter_version
            ));
        }
        let Some(completion) = turn.completion.filter(|done| !done.token_ids.is_empty()) else {
            self.wrong.push(format!("turn {id} has no recorded tokens"));
            return Ok(());
        };
        if !recompute {
            return Ok(());
        }
        let tokens = [turn.prompt_ids.as_slice(), &completion.token_ids].concat();
        let sequence = Sequence {
            tokens: &tokens,
            start: turn.prompt_ids.len(),
            temperature: turn.temperature,
            candidates: Candidates::None,
        };
        let weights = match reply.version {
            0 => None,
            version => Some(weights_of(version)?),
        };
        let backend = server.engine().backend();
        let scored = backend.score_weights(weights.as_ref(), &[sequence])?;
        let scored = scored.into_iter().flat_map(|scored| scored.logprobs);
        let pairs = scored.zip(&completion.full_logprobs);
        let differences: Vec<f64> = pairs.map(|(a, b)| f64::from((a - b).abs())).collect();
        // A log-prob that is no number is a mismatch; `f64::max` would drop it.
        let worst = differences.iter().copied().fold(0.0, |worst, one| {
            if one > worst || one.is_nan() {
                one
            } else {
                worst
            }
        });
        self.recomputed += 1;
        self.tokens += differences.len();
        self.sum += differences.iter().sum::<f64>();
        self.most = self.most.max(worst);
        if worst.is_nan() || worst > backend.logprob_rounding().max {
            self.wrong.push(format!(
                "turn {id}: a recorded log-prob differs by {worst} from version {}",
                reply.version
            ));
        }
        Ok(())
    }

    /// The first mismatch and their number, if there are any.
    pub(super) fn missed_bound(&self) -> Option<String> {
        let first = self.wrong.first()?;
        Some(format!(
            "{} replies do not match their version; {first}",
            self.wrong.len()
        ))
    }

    /// Mean difference of a recomputed log-prob in nats.
    fn mean(&self) -> f64 {
        self.sum / self.tokens.max(1) as f64
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "looked_up": self.looked_up, "recomputed": self.recomputed, "tokens": self.tokens,
            "mean_difference": self.mean(), "largest_difference": self.most, "wrong": self.wrong,
        })
    }

    pub(super) fn line(&self) -> String {
        format!(
            "{} replies checked against the journal, {} recomputed (log-probs differ by {} on average, at most {} nats): {} mismatches",
            self.looked_up,
            self.recomputed,
            number(self.mean()),
            number(self.most),
            self.wrong.len()
        )
    }
}
