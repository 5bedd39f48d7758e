//! The sampler state of a request on the host, and how it reaches the kernel: parameters, and lists of the few tokens
//! whose logits change. `host/cpu/src/sampling` is the reference of the order in which they apply.

use std::collections::{HashMap, HashSet};

use clawhost_engine::TokenBitmask;
use clawhost_engine::backend::{SampleError, SamplerOutput, SamplerSpec};

use crate::kernels::{
    MODE_GREEDY, MODE_RECORDED, MODE_SAMPLE, STATUS_NO_TOKEN, STATUS_NOT_FINITE, SampleOutput,
    SampleRow,
};

/// Samples the tokens of one request. Token `i` of the reply uses the `i`-th number of the random stream of its seed.
#[derive(Debug)]
pub(crate) struct Sampler {
    spec: SamplerSpec,
    /// Number of tokens sampled so far.
    position: u32,
    prompt: HashSet<u32>,
    counts: HashMap<u32, u32>,
    /// The last sampled tokens, as many as the longest banned sequence has.
    recent: Vec<u32>,
    /// One bit per token of `allowed_token_ids`; empty: all.
    allowed: Vec<u32>,
}

/// The lists of all rows.
pub(crate) type Words = Vec<u32>;

fn int(value: usize) -> i32 {
    i32::try_from(value).expect("lists are short")
}

impl Sampler {
    /// A sampler at the start of a reply.
    pub(crate) fn new(spec: SamplerSpec) -> Self {
        let mut allowed = Vec::new();
        for id in &spec.params.allowed_token_ids {
            let word = *id as usize / 32;
            if word >= allowed.len() {
                allowed.resize(word + 1, 0);
            }
            allowed[word] |= 1 << (id % 32);
        }
        Self {
            prompt: spec.prompt.iter().copied().collect(),
            spec,
            position: 0,
            counts: HashMap::new(),
            recent: Vec::new(),
            allowed,
        }
    }

    /// Appends a token to the reply.
    pub(crate) fn accept(&mut self, id: u32) {
        self.position += 1;
        if self.spec.params.has_penalties() {
            *self.counts.entry(id).or_default() += 1;
        }
        if let Some(longest) = self.spec.banned.iter().map(Vec::len).max() {
            self.recent.push(id);
            let beyond = self.recent.len().saturating_sub(longest);
            self.recent.drain(..beyond);
        }
    }

    /// The row of the kernel for the next token, whose lists are appended to `words`.
    ///
    /// # Errors
    /// A replay that has no token at this position.
    pub(crate) fn row(
        &self,
        logits: usize,
        bitmask: Option<&TokenBitmask>,
        words: &mut Words,
    ) -> Result<SampleRow, SampleError> {
        let params = &self.spec.params;
        let mut row = SampleRow {
            mode: if params.is_greedy() {
                MODE_GREEDY
            } else {
                MODE_SAMPLE
            },
            logits: int(logits),
            seed_low: self.spec.seed as u32,
            seed_high: (self.spec.seed >> 32) as u32,
            position: self.position,
            recorded: 0,
            temperature: params.full_temperature(),
            min_p: params.min_p,
            top_p: params.top_p,
            top_k: i32::try_from(params.top_k).unwrap_or(i32::MAX),
            presence_penalty: params.presence_penalty,
            frequency_penalty: params.frequency_penalty,
            repetition_penalty: params.repetition_penalty,
            top_logprobs: params.top_logprobs.into(),
            constrained: i32::from(bitmask.is_some() || !self.allowed.is_empty()),
            bitmask: -1,
            ..SampleRow::default()
        };
        if let Some(recorded) = &self.spec.recorded {
            let position = self.position as usize;
            let id = recorded.get(position);
            row.mode = MODE_RECORDED;
            row.recorded = *id.ok_or(SampleError::NoRecordedToken { position })?;
        }
        self.append_lists(&mut row, bitmask, words);
        let lists = row.bias_count + row.penalty_count + row.suppressed_count;
        row.adjusts = i32::from(lists > 0 || row.bitmask >= 0);
        Ok(row)
    }

    fn append_lists(&self, row: &mut SampleRow, bitmask: Option<&TokenBitmask>, words: &mut Words) {
        row.biases = int(words.len());
        row.bias_count = int(self.spec.params.logit_bias.len());
        let biases = self.spec.params.logit_bias.iter();
        words.extend(biases.flat_map(|(id, bias)| [*id, bias.to_bits()]));
        row.penalties = int(words.len());
        let penalized = self.penalized();
        row.penalty_count = int(penalized.len());
        words.extend(penalized.into_iter().flat_map(|(id, count)| [id, count]));
        row.suppressed = int(words.len());
        let suppressed = self.suppressed();
        row.suppressed_count = int(suppressed.len());
        words.extend(suppressed);
        let masks = [
            bitmask.map(TokenBitmask::words),
            (!self.allowed.is_empty()).then_some(self.allowed.as_slice()),
        ];
        let mut masks = masks.into_iter().flatten();
        if let Some(first) = masks.next() {
            row.bitmask = int(words.len());
            match masks.next() {
                None => words.extend(first),
                Some(second) => words.extend(first.iter().zip(second).map(|(a, b)| a & b)),
            }
            row.bitmask_words = int(words.len()) - row.bitmask;
        }
    }

    /// Tokens whose logits a penalty changes, with their occurrences in the reply.
    fn penalized(&self) -> Vec<(u32, u32)> {
        let params = &self.spec.params;
        let mut tokens: Vec<(u32, u32)> = self.counts.iter().map(|(id, n)| (*id, *n)).collect();
        if params.repetition_penalty != 1.0 {
            let unused = self
                .prompt
                .iter()
                .filter(|id| !self.counts.contains_key(id));
            tokens.extend(unused.map(|id| (*id, 0)));
        }
        if !params.has_penalties() {
            tokens.clear();
        }
        tokens.sort_unstable();
        tokens
    }

    /// Tokens that would complete a banned sequence now, and those that end a reply before `min_tokens`.
    fn suppressed(&self) -> Vec<u32> {
        let banned = self.spec.banned.iter().filter_map(|sequence| {
            let (last, before) = sequence.split_last()?;
            self.recent.ends_with(before).then_some(*last)
        });
        let mut tokens: Vec<u32> = banned.collect();
        if self.position < self.spec.params.min_tokens {
            tokens.extend(self.spec.eos_token_ids.iter());
            tokens.extend(&self.spec.params.stop_token_ids);
        }
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    }

    /// What the kernel returned, as the engine expects it.
    ///
    /// # Errors
    /// As the kernel reports them.
    pub(crate) fn output(&self, output: &SampleOutput) -> Result<SamplerOutput, SampleError> {
        match output.status {
            STATUS_NOT_FINITE => {
                return Err(SampleError::NotFinite {
                    id: output.bad_id as usize,
                    value: output.bad_logit.to_string(),
                });
            }
            STATUS_NO_TOKEN => {
                return Err(SampleError::Constraint("it allows no token".to_owned()));
            }
            _ => {}
        }
        let top = output.top_ids.iter().zip(output.top_logprobs);
        let count = usize::from(self.spec.params.top_logprobs);
        Ok(SamplerOutput {
            id: output.id,
            logprob: output.logprob,
            full_logprob: output.full_logprob,
            model_logprob: output.model_logprob,
            top: top
                .take(count)
                .map(|(id, logprob)| (*id, logprob))
                .collect(),
            forced: output.forced != 0,
        })
    }
}
