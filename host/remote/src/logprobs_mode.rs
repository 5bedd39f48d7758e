//! How a server computes the log-prob that it returns, and which of the three recorded log-probs follow from it.
//!
//! vLLM returns the log-prob of the raw model distribution (`--logprobs-mode raw_logprobs`, its default) or of the
//! distribution that the token was sampled from (`processed_logprobs`). SGLang returns that of the full softmax at the
//! temperature, after penalties and before truncation; with `SGLANG_RETURN_ORIGINAL_LOGPROB` the raw one, but after
//! penalties. Three are recorded: processed, full softmax at the temperature without penalties, and raw.
//!
//! | returned | settings | known at once | computed at the end of the reply | rejected |
//! |---|---|---|---|---|
//! | raw | temperature 1, all tokens | all | | |
//! | raw | other temperature or truncation | raw | processed, full | |
//! | raw | penalties | | | yes |
//! | temperature-scaled | all tokens | processed, full | | |
//! | temperature-scaled | truncation | full | processed | with penalties as well |
//! | temperature-scaled | penalties | processed | full | |
//! | processed | all tokens | processed, full | | |
//! | processed | truncation or penalties | processed | full | |
//!
//! At temperature 1 the full one equals the raw one. A greedy token is sampled with certainty: its processed log-prob
//! is 0. What is computed at the end is computed by the local model, under the same version; until then it is NaN. The
//! raw one is only shown to chat clients and is not computed for them: where it is unknown, a request for top_logprobs
//! is rejected.

use clawhost_engine::SamplingParams;

/// How a server computes log-probs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogprobsMode {
    /// The raw model distribution, at temperature 1.
    Raw,
    /// The full softmax at the temperature.
    TemperatureScaled,
    /// The distribution the token was sampled from.
    Processed,
}

/// The three log-probs of a token; NaN where unknown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenLogprobs {
    pub(crate) processed: f32,
    pub(crate) full: f32,
    pub(crate) raw: f32,
}

/// The relevant properties of the sampling parameters.
struct Settings {
    greedy: bool,
    temperature_is_one: bool,
    truncates: bool,
    penalized: bool,
}

impl Settings {
    fn from_params(sampling: &SamplingParams) -> Self {
        let greedy = sampling.is_greedy();
        Self {
            greedy,
            temperature_is_one: greedy || sampling.temperature == 1.0,
            truncates: !greedy
                && (sampling.top_k > 0 || sampling.top_p < 1.0 || sampling.min_p > 0.0),
            penalized: sampling.presence_penalty != 0.0
                || sampling.frequency_penalty != 0.0
                || sampling.repetition_penalty != 1.0,
        }
    }
}

impl LogprobsMode {
    /// Derives the three log-probs from the returned one.
    pub(crate) fn derive(self, sampling: &SamplingParams, returned: f32) -> TokenLogprobs {
        let is = Settings::from_params(sampling);
        let when = |known: bool| if known { returned } else { f32::NAN };
        let plain = !is.penalized;
        let (processed, full) = match self {
            Self::Raw => (
                plain && is.temperature_is_one && !is.truncates,
                plain && is.temperature_is_one,
            ),
            Self::TemperatureScaled => (!is.truncates, plain),
            // What vLLM returns for a greedy token depends on the rest of its batch.
            Self::Processed => (!is.greedy, plain && !is.truncates && !is.greedy),
        };
        let raw = match self {
            Self::Raw => plain,
            Self::TemperatureScaled | Self::Processed => full && is.temperature_is_one,
        };
        TokenLogprobs {
            processed: if is.greedy { 0.0 } else { when(processed) },
            full: when(full),
            raw: when(raw),
        }
    }

    /// Whether recorded log-probs must be computed by the local model.
    pub(crate) fn needs_rescoring(self, sampling: &SamplingParams) -> bool {
        let known = self.derive(sampling, -1.0);
        known.processed.is_nan() || known.full.is_nan()
    }

    /// Checks that a request can be served with correct log-probs.
    ///
    /// # Errors
    /// The reason, with a fix.
    pub(crate) fn check_sampling(self, sampling: &SamplingParams) -> Result<(), String> {
        if sampling.constraint.is_some()
            || !sampling.logit_bias.is_empty()
            || sampling.ignore_eos
            || sampling.min_tokens > 0
            || !sampling.allowed_token_ids.is_empty()
            || !sampling.bad_words.is_empty()
        {
            return Err(
                "response_format, logit_bias, ignore_eos, min_tokens, allowed_token_ids and bad_words are not supported by the remote backend; remove them"
                    .to_owned(),
            );
        }
        let is = Settings::from_params(sampling);
        let unsupported = match self {
            Self::Raw => is.penalized && !is.greedy,
            Self::TemperatureScaled => is.penalized && is.truncates,
            Self::Processed => false,
        };
        if unsupported {
            return Err(format!(
                "the remote backend returns log-probs {}, from which those with penalties cannot be computed; remove presence_penalty, frequency_penalty and repetition_penalty, or use vLLM with --logprobs-mode processed_logprobs",
                match self {
                    Self::Raw => "of the raw model distribution",
                    _ => "before top_k, top_p and min_p",
                }
            ));
        }
        if sampling.top_logprobs > 0 && self.derive(sampling, -1.0).raw.is_nan() {
            return Err(
                "the remote backend does not return raw log-probs with these settings, which top_logprobs needs; remove top_logprobs, set temperature 1, or use vLLM with --logprobs-mode raw_logprobs"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(logprobs_mode: LogprobsMode, change: impl FnOnce(&mut SamplingParams)) -> [bool; 3] {
        let mut sampling = SamplingParams::default();
        change(&mut sampling);
        let known = logprobs_mode.derive(&sampling, -0.5);
        [known.processed, known.full, known.raw].map(|value| !value.is_nan())
    }

    #[test]
    fn only_derivable_logprobs_are_reported() {
        use LogprobsMode::{Processed, Raw, TemperatureScaled};
        let (all, none) = ([true; 3], [false; 3]);
        for logprobs_mode in [Raw, TemperatureScaled, Processed] {
            assert_eq!(known(logprobs_mode, |_| ()), all);
        }
        let cool = |s: &mut SamplingParams| s.temperature = 0.7;
        assert_eq!(known(Raw, cool), [false, false, true]);
        assert_eq!(known(TemperatureScaled, cool), [true, true, false]);
        assert_eq!(known(Processed, cool), [true, true, false]);
        let truncates = |s: &mut SamplingParams| s.top_p = 0.9;
        assert_eq!(known(Raw, truncates), [false, true, true]);
        assert_eq!(known(TemperatureScaled, truncates), [false, true, true]);
        assert_eq!(known(Processed, truncates), [true, false, false]);
        let penalized = |s: &mut SamplingParams| s.presence_penalty = 0.5;
        assert_eq!(known(Raw, penalized), none);
        assert_eq!(known(TemperatureScaled, penalized), [true, false, false]);
        assert_eq!(known(Processed, penalized), [true, false, false]);
        let greedy = |s: &mut SamplingParams| (s.temperature, s.top_k) = (0.0, 5);
        assert_eq!(known(Raw, greedy), all);
        assert_eq!(known(TemperatureScaled, greedy), all);
        assert_eq!(known(Processed, greedy), [true, false, false]);
    }

    #[test]
    fn unsupported_settings_are_rejected_with_the_flag_that_fixes_them() {
        let mut sampling = SamplingParams {
            frequency_penalty: 0.5,
            ..SamplingParams::default()
        };
        let reason = LogprobsMode::Raw.check_sampling(&sampling).unwrap_err();
        assert!(reason.contains("processed_logprobs"), "{reason}");
        LogprobsMode::TemperatureScaled
            .check_sampling(&sampling)
            .unwrap();
        sampling.top_k = 4;
        LogprobsMode::TemperatureScaled
            .check_sampling(&sampling)
            .unwrap_err();
        LogprobsMode::Processed.check_sampling(&sampling).unwrap();
        sampling.top_logprobs = 2;
        let reason = LogprobsMode::Processed
            .check_sampling(&sampling)
            .unwrap_err();
        assert!(reason.contains("raw_logprobs"), "{reason}");
    }
}
