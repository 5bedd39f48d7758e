//! What everything here needs to ask the server: where it is, and the model that its claims are checked against.

use std::sync::Arc;

use clawhost_policy::{Model, Sampling, Served};

use crate::http::{Server, Trouble};
use crate::lines::Lines;
use crate::options::RemoteOptions;
use crate::rescoring;
use crate::wire::{Asked, Ended, Told};

/// Tokens that are compared at least, where the model does not end its replies sooner.
const COMPARED: usize = 32;
/// Tokens of one reply that are compared.
const EACH: usize = 16;
/// Replies that are asked for at most.
const REPLIES: u64 = 8;

/// A server, and the weights that it should have.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) options: RemoteOptions,
    pub(crate) server: Server,
    pub(crate) model: Arc<Model>,
    /// What replies are asked to for comparing.
    pub(crate) prompt: Vec<u32>,
}

/// A reply that was asked for to compare, with what the server said of its tokens.
#[derive(Debug, Clone)]
pub(crate) struct Sampled {
    pub(crate) ids: Vec<u32>,
    pub(crate) returned: Vec<f32>,
}

impl Calls {
    /// A few replies, until there are enough tokens to compare. `adapter` is the name of one at the server.
    pub(crate) async fn sample(
        &self,
        adapter: Option<&str>,
        sampling: &Sampling,
    ) -> Result<Vec<Sampled>, Trouble> {
        let mut all = Vec::new();
        let mut tokens = 0;
        for seed in 1..=REPLIES {
            let sampling = Sampling {
                seed: Some(seed),
                ..sampling.clone()
            };
            let told = self.reply(adapter, &sampling).await?;
            tokens += told.len();
            all.push(Sampled {
                ids: told.iter().map(|told| told.id).collect(),
                returned: told.iter().map(|told| told.logprob).collect(),
            });
            if tokens >= COMPARED {
                break;
            }
        }
        all.retain(|sampled| !sampled.ids.is_empty());
        if all.is_empty() {
            return Err(Trouble::Garbled("it sampled no token at all".to_owned()));
        }
        Ok(all)
    }

    async fn reply(
        &self,
        adapter: Option<&str>,
        sampling: &Sampling,
    ) -> Result<Vec<Told>, Trouble> {
        let kind = self.options.kind;
        let asked = Asked {
            model: adapter.unwrap_or(&self.options.model),
            is_adapter: adapter.is_some(),
            prompt: &self.prompt,
            sampling,
            ends: &[],
            room: EACH,
        };
        let mut answer = self.server.post(kind.path(), &kind.body(&asked)).await?;
        let (mut lines, mut reader) = (Lines::default(), kind.reader());
        let mut all = Vec::new();
        while let Some(bytes) = self.server.next(&mut answer).await? {
            let payloads = lines
                .push(&bytes)
                .map_err(|reason| Trouble::Garbled(reason.to_owned()))?;
            for payload in payloads {
                let Some(delta) = reader.read(&payload)? else {
                    return self.known(all);
                };
                all.extend(delta.tokens);
                match delta.ended {
                    Some(Ended::Broken(said)) => return Err(Trouble::Garbled(said)),
                    Some(Ended::Stop | Ended::Length) => return self.known(all),
                    None => {}
                }
            }
        }
        Err(Trouble::Gone(
            "the connection was closed before the reply was complete".to_owned(),
        ))
    }

    /// Tokens that the model here has as well.
    fn known(&self, all: Vec<Told>) -> Result<Vec<Told>, Trouble> {
        let vocab = self.model.config().vocab_size;
        match all.iter().find(|told| told.id as usize >= vocab) {
            Some(told) => Err(Trouble::Garbled(format!(
                "token {} is outside the vocabulary of {vocab} of the model that is loaded here",
                told.id
            ))),
            None => Ok(all),
        }
    }

    /// What the weights here find of some replies at temperature 1, token after token.
    pub(crate) async fn own(
        &self,
        served: &Served,
        sampled: &[Sampled],
    ) -> Result<Vec<f32>, Trouble> {
        let (model, served) = (Arc::clone(&self.model), served.clone());
        let (prompt, sampled) = (self.prompt.clone(), sampled.to_vec());
        apart(move || {
            let mut all = Vec::new();
            for one in &sampled {
                let scored = rescoring::plain(&model, &served, &prompt, &one.ids, 1.0);
                all.extend(scored.map_err(|error| Trouble::Garbled(error.to_string()))?);
            }
            Ok(all)
        })
        .await
    }
}

/// Long work on a thread where it holds up nobody.
pub(crate) async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Trouble> + Send + 'static,
) -> Result<T, Trouble> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(Trouble::Garbled(error.to_string())))
}

/// Log-probs that were returned, token after token.
pub(crate) fn returned(sampled: &[Sampled]) -> Vec<f32> {
    let all = sampled.iter().flat_map(|one| &one.returned);
    all.copied().collect()
}

/// Mean |difference| over what is finite on both sides; infinite where nothing is.
#[allow(
    clippy::cast_precision_loss,
    reason = "token counts are far below 2^53"
)]
pub(crate) fn distance(a: &[f32], b: &[f32]) -> f64 {
    let gaps: Vec<f64> = a
        .iter()
        .zip(b)
        .map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs())
        .filter(|gap| gap.is_finite())
        .collect();
    if gaps.is_empty() {
        f64::INFINITY
    } else {
        gaps.iter().sum::<f64>() / gaps.len() as f64
    }
}
