//! A teacher at an endpoint: log-probs of given tokens after given tokens, by `/completions` with `echo`.
//!
//! Prompt and reply are sent as token ids, so the endpoint's model must have the policy's tokenizer. That is made sure
//! of once, before the first score, by a text whose tokens it has to spell as they are spelled here; an endpoint that
//! spells them otherwise is refused. It scores at temperature 1.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use clawhost_chat::Tokenizer;
use clawhost_config::Secret;
use clawhost_training::{
    RemoteTeacher, TeacherEndpoint, TeacherError, TeacherRequest, TeacherScores,
};
use serde_json::{Value, json};

use super::endpoint::{Endpoint, EndpointError};
use super::network::NETWORK_RUNTIME;

/// Letters, digits, punctuation and white space, which vocabularies cut each in their own way.
const SPELLED: &str = "Unbelievably, 31415 students' half-finished answers (see page 12) weren't re-read; def f(x):\n    return x**2 != 100_000";

/// A model elsewhere that reads hints.
pub(crate) struct FarTeacher {
    endpoint: Endpoint,
    model: String,
    tokenizer: Arc<Tokenizer>,
    /// Whether it is known to have this tokenizer.
    checked: AtomicBool,
}

impl std::fmt::Debug for FarTeacher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FarTeacher")
            .field("url", &self.endpoint.url())
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}

impl FarTeacher {
    /// # Errors
    /// A key whose variable is not set.
    pub(crate) fn new(options: &TeacherEndpoint, tokenizer: Arc<Tokenizer>) -> Result<Self> {
        let key = options.api_key.as_ref().map(Secret::read).transpose();
        let key = key.context("training.teacher.endpoint.api_key")?;
        Ok(Self {
            endpoint: Endpoint::new(&options.url, key, options.timeout),
            model: options.model.clone(),
            tokenizer,
            checked: AtomicBool::new(false),
        })
    }

    /// Refuses an endpoint that can be known to be of no use; one that is away is asked again later.
    pub(crate) fn check_at_start(&self) -> Result<()> {
        match self.check() {
            Ok(()) => Ok(()),
            Err(TeacherError::Unavailable(reason)) => {
                tracing::warn!(
                    reason,
                    "the teacher is away; samples with hints wait for it"
                );
                Ok(())
            }
            Err(TeacherError::Rejected(reason)) => {
                anyhow::bail!("training.teacher.endpoint cannot teach: {reason}")
            }
        }
    }

    fn check(&self) -> Result<(), TeacherError> {
        if self.checked.load(Ordering::Relaxed) {
            return Ok(());
        }
        let ids = self
            .tokenizer
            .encode(SPELLED)
            .map_err(|error| TeacherError::Rejected(error.to_string()))?;
        let found = self.echo(&ids, 0, false)?;
        for (at, id) in ids.iter().enumerate() {
            let here = self.tokenizer.decode_with_special(&[*id]);
            let there = found.tokens.get(at).map_or("", String::as_str);
            // Part of a character is spelled in more than one way.
            if here.contains(char::REPLACEMENT_CHARACTER) || here == there {
                continue;
            }
            return Err(TeacherError::Rejected(format!(
                "{} at {} has another tokenizer than the policy: token {id} is {here:?} here and {there:?} there; the teacher must be of the same family",
                self.model,
                self.endpoint.url()
            )));
        }
        self.checked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// What the endpoint finds of each of these tokens.
    fn echo(&self, ids: &[u32], top: usize, by_id: bool) -> Result<Echo, TeacherError> {
        let mut body = json!({
            "model": self.model,
            "prompt": ids,
            "max_tokens": 1,
            "temperature": 1.0,
            "echo": true,
            "logprobs": top.max(1),
        });
        if by_id {
            body["return_tokens_as_token_ids"] = true.into();
        }
        let body = body.to_string();
        let bytes = NETWORK_RUNTIME.block_on(self.endpoint.post("completions", &body));
        let bytes = bytes.map_err(|failure| {
            let message = format!("{} at {}: {failure}", self.model, self.endpoint.url());
            match failure {
                // Nothing is wrong with the question; a key or a name that is wrong is mended elsewhere.
                EndpointError::Status {
                    status: 400 | 413 | 422,
                    ..
                } => TeacherError::Rejected(message),
                _ => TeacherError::Unavailable(message),
            }
        })?;
        let found: Option<Echo> = serde_json::from_slice(&bytes)
            .ok()
            .and_then(|value: Value| Echo::read(&value));
        let rejected = |reason: String| {
            let (model, url) = (&self.model, self.endpoint.url());
            Err(TeacherError::Rejected(format!("{model} at {url} {reason}")))
        };
        let Some(found) = found.filter(|found| !found.logprobs.is_empty()) else {
            return rejected(
                "does not score prompts: it has to answer /completions with echo = true by the log-probs of the prompt's tokens, as vLLM does"
                    .to_owned(),
            );
        };
        // The prompt's tokens and the one that it went on with. With any other number, log-probs would belong to other
        // tokens than they are read for.
        let (tokens, logprobs) = (found.tokens.len(), found.logprobs.len());
        if tokens != logprobs || !(ids.len()..=ids.len() + 1).contains(&tokens) {
            return rejected(format!(
                "returned {tokens} tokens with {logprobs} log-probs for a prompt of {} tokens; it has to score the token ids as they are sent, without adding or removing any",
                ids.len()
            ));
        }
        Ok(found)
    }
}

/// The prompt's tokens as an endpoint gives them back.
struct Echo {
    tokens: Vec<String>,
    /// NaN for the first, which follows nothing.
    logprobs: Vec<f32>,
    tops: Vec<Vec<(String, f32)>>,
}

#[allow(clippy::cast_possible_truncation, reason = "log-probs are kept in f32")]
impl Echo {
    fn read(value: &Value) -> Option<Self> {
        let found = value.pointer("/choices/0/logprobs")?;
        let list = |key: &str| found.get(key).and_then(Value::as_array);
        let number = |value: &Value| value.as_f64().map_or(f32::NAN, |number| number as f32);
        let tops = list("top_logprobs").map(|all| {
            let entries = all.iter().map(|entry| entry.as_object());
            entries
                .map(|entry| {
                    let pairs = entry.into_iter().flatten();
                    pairs
                        .map(|(token, value)| (token.clone(), number(value)))
                        .collect()
                })
                .collect()
        });
        Some(Self {
            tokens: list("tokens")?
                .iter()
                .map(|token| token.as_str().map(str::to_owned))
                .collect::<Option<_>>()?,
            logprobs: list("token_logprobs")?.iter().map(number).collect(),
            tops: tops.unwrap_or_default(),
        })
    }

    /// The likeliest tokens of a position, best first, where they are spelled by their ids.
    fn top(&self, at: usize, count: usize) -> Option<Vec<(u32, f32)>> {
        let mut top: Vec<(u32, f32)> = self
            .tops
            .get(at)?
            .iter()
            .filter_map(|(token, value)| {
                Some((token.strip_prefix("token_id:")?.parse().ok()?, *value))
            })
            .collect();
        top.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        top.truncate(count);
        (top.len() == count).then_some(top)
    }
}

impl RemoteTeacher for FarTeacher {
    fn score(&self, question: TeacherRequest<'_>) -> Result<TeacherScores, TeacherError> {
        self.check()?;
        let TeacherRequest { prompt, reply, top } = question;
        let ids = [prompt, reply].concat();
        let found = self.echo(&ids, top, true)?;
        for (id, token) in ids.iter().zip(&found.tokens) {
            // Where it spells ids, they are those that were asked about.
            if let Some(spelled) = token.strip_prefix("token_id:")
                && spelled.parse() != Ok(*id)
            {
                return Err(TeacherError::Rejected(format!(
                    "the endpoint scored token {spelled} where {id} was asked about"
                )));
            }
        }
        let range = prompt.len()..ids.len();
        let mut answer = TeacherScores {
            logprobs: found.logprobs[range.clone()].to_vec(),
            ..TeacherScores::default()
        };
        for at in range.filter(|_| top > 0) {
            let likeliest = found.top(at, top).ok_or_else(|| {
                TeacherError::Rejected(format!(
                    "the endpoint does not tell the {top} likeliest tokens by their ids; vLLM does, with --max-logprobs of at least {top}"
                ))
            })?;
            let (ids, values): (Vec<u32>, Vec<f32>) = likeliest.into_iter().unzip();
            answer.top.extend(ids);
            answer.top_logprobs.extend(values);
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use clawhost_engine::{Candidates, Engine, EngineOptions, Sequence};
    use clawhost_model::ModelFiles;

    use super::super::endpoint::tests::{Peer, peer};
    use super::*;

    fn engine() -> Engine {
        clawhost_cpu::load_engine(&ModelFiles::embedded(), EngineOptions::default()).unwrap()
    }

    /// An endpoint in the form of vLLM that the base model here answers for; `shift` is added to each id first.
    fn endpoint(engine: &Engine, shift: u32) -> Peer {
        let engine = engine.clone();
        peer(move |_, body| {
            let asked: Value = serde_json::from_str(body).unwrap();
            let ids = asked["prompt"].as_array().unwrap().iter();
            let mut ids: Vec<u32> = ids.map(|id| id.as_u64().unwrap() as u32).collect();
            let vocab = engine.model().config().vocab_size as u32;
            ids.iter_mut().for_each(|id| *id = (*id + shift) % vocab);
            let k = asked["logprobs"].as_u64().unwrap() as usize;
            let sequence = Sequence {
                tokens: &ids,
                start: 1,
                temperature: 1.0,
                candidates: Candidates::Top(k),
            };
            let scored = engine
                .backend()
                .score_weights(None, &[sequence])
                .unwrap()
                .remove(0);
            let by_id = asked["return_tokens_as_token_ids"] == true;
            let spell = |id: u32| match by_id {
                true => format!("token_id:{id}"),
                false => engine.tokenizer().decode_with_special(&[id]),
            };
            let mut values = vec![Value::Null];
            values.extend(scored.logprobs.iter().map(|lp| json!(lp)));
            let mut tops = vec![Value::Null];
            for ((row, lps), (id, own)) in scored
                .candidates
                .chunks(k)
                .zip(scored.candidate_logprobs.chunks(k))
                .zip(ids.iter().skip(1).zip(&scored.logprobs))
            {
                let mut entry = serde_json::Map::new();
                entry.insert(spell(*id), json!(own));
                for (id, lp) in row.iter().zip(lps) {
                    entry.insert(spell(*id), json!(lp));
                }
                tops.push(entry.into());
            }
            // And one that it went on with.
            values.push(json!(-1.0));
            tops.push(json!({}));
            let mut tokens: Vec<String> = ids.iter().map(|id| spell(*id)).collect();
            tokens.push(spell(0));
            let logprobs =
                json!({"tokens": tokens, "token_logprobs": values, "top_logprobs": tops});
            let answer = json!({"choices": [{"index": 0, "text": "…", "logprobs": logprobs}]});
            ("200 OK".to_owned(), answer.to_string())
        })
    }

    fn teacher(url: &str, engine: &Engine) -> FarTeacher {
        let options = TeacherEndpoint {
            url: url.to_owned(),
            model: "t".to_owned(),
            api_key: None,
            timeout: std::time::Duration::from_secs(30),
        };
        FarTeacher::new(&options, engine.tokenizer().clone()).unwrap()
    }

    #[test]
    fn its_scores_are_those_of_the_model_that_answers() {
        let engine = engine();
        let peer = endpoint(&engine, 0);
        let teacher = teacher(&peer.url, &engine);
        teacher.check_at_start().unwrap();
        let prompt = engine.tokenizer().encode("What is 3 plus 4?").unwrap();
        let reply = engine.tokenizer().encode("It is 7.").unwrap();
        let answer = teacher
            .score(TeacherRequest {
                prompt: &prompt,
                reply: &reply,
                top: 5,
            })
            .unwrap();
        let tokens = [prompt.clone(), reply.clone()].concat();
        let sequence = Sequence {
            tokens: &tokens,
            start: prompt.len(),
            temperature: 1.0,
            candidates: Candidates::Top(5),
        };
        let own = engine
            .backend()
            .score_weights(None, &[sequence])
            .unwrap()
            .remove(0);
        let near = |a: &[f32], b: &[f32]| {
            assert_eq!(a.len(), b.len());
            assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5));
        };
        near(&answer.logprobs, &own.logprobs);
        near(&answer.top_logprobs, &own.candidate_logprobs);
        assert_eq!(answer.top, own.candidates);
        // The tokenizer was compared once.
        assert_eq!(peer.requests.lock().unwrap().len(), 2);
    }

    #[test]
    fn another_number_of_tokens_or_logprobs_is_rejected() {
        let engine = engine();
        let ids = engine.tokenizer().encode(SPELLED).unwrap();
        let spelled: Vec<String> = ids
            .iter()
            .map(|id| engine.tokenizer().decode_with_special(&[*id]))
            .collect();
        let count = ids.len();
        for (tokens, logprobs) in [
            (count - 1, count + 1),
            (count + 1, count - 1),
            (count + 3, count + 3),
        ] {
            let mut names = spelled.clone();
            names.resize(tokens, "x".to_owned());
            let answer = json!({"choices": [{"logprobs": {
                "tokens": names, "token_logprobs": vec![-1.0; logprobs],
            }}]});
            let peer = peer(move |_, _| ("200 OK".to_owned(), answer.to_string()));
            let error = teacher(&peer.url, &engine).check_at_start().unwrap_err();
            let found =
                format!("{tokens} tokens with {logprobs} log-probs for a prompt of {count}");
            assert!(error.to_string().contains(&found), "{error}");
        }
    }

    #[test]
    fn another_tokenizer_is_refused_and_one_that_is_away_is_not() {
        let engine = engine();
        let error = teacher(&endpoint(&engine, 1).url, &engine).check_at_start();
        let error = error.unwrap_err().to_string();
        assert!(error.contains("another tokenizer"), "{error}");
        let silent = peer(|_, _| {
            (
                "200 OK".to_owned(),
                json!({"choices": [{"text": "hi"}]}).to_string(),
            )
        });
        let error = teacher(&silent.url, &engine).check_at_start().unwrap_err();
        assert!(
            error.to_string().contains("does not score prompts"),
            "{error}"
        );
        let away = teacher("http://127.0.0.1:1/v1", &engine);
        away.check_at_start().unwrap();
        let question = TeacherRequest {
            prompt: &[1],
            reply: &[2],
            top: 0,
        };
        let silent = away.score(question).unwrap_err();
        assert!(matches!(&silent, TeacherError::Unavailable(_)), "{silent}");
    }
}
