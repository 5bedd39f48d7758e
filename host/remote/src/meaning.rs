//! What the one log-prob that a server returns is of, and which of the three that are recorded follow from it.
//!
//! vLLM returns that of the model's own distribution (`--logprobs-mode raw_logprobs`, its default) or of the one that
//! the token was drawn from (`processed_logprobs`). SGLang returns that of the full softmax at the temperature, after
//! penalties and before cuts; with `SGLANG_RETURN_ORIGINAL_LOGPROB` the model's own, but after penalties. Three are
//! recorded here: as drawn, of the full softmax at the temperature without penalties, and the model's own.
//!
//! | returned | settings | known at once | computed at the end of the reply | refused |
//! |---|---|---|---|---|
//! | model's | temperature 1, all tokens | all | | |
//! | model's | other temperature or a cut | model's | drawn, full | |
//! | model's | penalties | | | yes |
//! | at the temperature | all tokens | drawn, full | | |
//! | at the temperature | a cut | full | drawn | with penalties as well |
//! | at the temperature | penalties | drawn | full | |
//! | as drawn | all tokens | drawn, full | | |
//! | as drawn | a cut or penalties | drawn | full | |
//!
//! At temperature 1 the full one is the model's as well. A greedy token is drawn with certainty: its log-prob as drawn
//! is 0. What is computed at the end is computed by the weights here, under the same version. One that is not known
//! is NaN until then. The model's own, which nobody but a chat client looks at, is not computed for its sake: where it
//! stays unknown a client that asks for alternatives is refused.

use clawhost_policy::Sampling;

/// What a server's log-probs are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reports {
    /// The model's own distribution, at temperature 1.
    Model,
    /// The full softmax at the temperature.
    Tempered,
    /// What the token was drawn from.
    Drawn,
}

/// The three log-probs of a token; NaN where one is not known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    pub(crate) drawn: f32,
    pub(crate) full: f32,
    pub(crate) model: f32,
}

/// What matters about a request.
struct Settings {
    greedy: bool,
    at_one: bool,
    cut: bool,
    penalised: bool,
}

impl Settings {
    fn of(sampling: &Sampling) -> Self {
        let greedy = sampling.is_greedy();
        Self {
            greedy,
            at_one: greedy || sampling.temperature == 1.0,
            cut: !greedy && (sampling.top_k > 0 || sampling.top_p < 1.0 || sampling.min_p > 0.0),
            penalised: sampling.presence_penalty != 0.0
                || sampling.frequency_penalty != 0.0
                || sampling.repetition_penalty != 1.0,
        }
    }
}

impl Reports {
    /// What follows from a returned log-prob.
    pub(crate) fn known(self, sampling: &Sampling, returned: f32) -> Known {
        let is = Settings::of(sampling);
        let when = |known: bool| if known { returned } else { f32::NAN };
        let plain = !is.penalised;
        let (drawn, full) = match self {
            Self::Model => (plain && is.at_one && !is.cut, plain && is.at_one),
            Self::Tempered => (!is.cut, plain),
            // What vLLM returns for a greedy token depends on what else is in its batch.
            Self::Drawn => (!is.greedy, plain && !is.cut && !is.greedy),
        };
        let model = match self {
            Self::Model => plain,
            Self::Tempered | Self::Drawn => full && is.at_one,
        };
        Known {
            drawn: if is.greedy { 0.0 } else { when(drawn) },
            full: when(full),
            model: when(model),
        }
    }

    /// Whether the recorded log-probs need the weights here.
    pub(crate) fn rescores(self, sampling: &Sampling) -> bool {
        let known = self.known(sampling, -1.0);
        known.drawn.is_nan() || known.full.is_nan()
    }

    /// Whether a request can be answered with true numbers.
    ///
    /// # Errors
    /// Why not, and what would mend it.
    pub(crate) fn allows(self, sampling: &Sampling) -> Result<(), String> {
        if sampling.constraint.is_some()
            || !sampling.logit_bias.is_empty()
            || sampling.ignore_eos
            || sampling.min_tokens > 0
            || !sampling.allowed_token_ids.is_empty()
            || !sampling.bad_words.is_empty()
        {
            return Err(
                "a form of the reply, logit_bias, ignore_eos, min_tokens, allowed_token_ids and bad_words are not passed on to the server that generates; leave them away"
                    .to_owned(),
            );
        }
        let is = Settings::of(sampling);
        let blind = match self {
            Self::Model => is.penalised && !is.greedy,
            Self::Tempered => is.penalised && is.cut,
            Self::Drawn => false,
        };
        if blind {
            return Err(format!(
                "the server that generates returns log-probs {}, from which those of a penalised distribution do not follow; leave presence_penalty, frequency_penalty and repetition_penalty away, or let it be a vLLM with --logprobs-mode processed_logprobs",
                match self {
                    Self::Model => "of the model's own distribution",
                    _ => "before top_k, top_p and min_p",
                }
            ));
        }
        if sampling.top_logprobs > 0 && self.known(sampling, -1.0).model.is_nan() {
            return Err(
                "the server that generates does not return the model's own log-probs at these settings, so alternatives cannot be shown; ask without top_logprobs or at temperature 1, or let it be a vLLM with --logprobs-mode raw_logprobs"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(reports: Reports, change: impl FnOnce(&mut Sampling)) -> [bool; 3] {
        let mut sampling = Sampling::default();
        change(&mut sampling);
        let known = reports.known(&sampling, -0.5);
        [known.drawn, known.full, known.model].map(|value| !value.is_nan())
    }

    #[test]
    fn nothing_is_claimed_that_does_not_follow() {
        use Reports::{Drawn, Model, Tempered};
        let (all, none) = ([true; 3], [false; 3]);
        for reports in [Model, Tempered, Drawn] {
            assert_eq!(known(reports, |_| ()), all);
        }
        let cool = |s: &mut Sampling| s.temperature = 0.7;
        assert_eq!(known(Model, cool), [false, false, true]);
        assert_eq!(known(Tempered, cool), [true, true, false]);
        assert_eq!(known(Drawn, cool), [true, true, false]);
        let cut = |s: &mut Sampling| s.top_p = 0.9;
        assert_eq!(known(Model, cut), [false, true, true]);
        assert_eq!(known(Tempered, cut), [false, true, true]);
        assert_eq!(known(Drawn, cut), [true, false, false]);
        let penalised = |s: &mut Sampling| s.presence_penalty = 0.5;
        assert_eq!(known(Model, penalised), none);
        assert_eq!(known(Tempered, penalised), [true, false, false]);
        assert_eq!(known(Drawn, penalised), [true, false, false]);
        let greedy = |s: &mut Sampling| (s.temperature, s.top_k) = (0.0, 5);
        assert_eq!(known(Model, greedy), all);
        assert_eq!(known(Tempered, greedy), all);
        assert_eq!(known(Drawn, greedy), [true, false, false]);
    }

    #[test]
    fn what_can_never_be_known_is_refused_with_the_flag_that_mends_it() {
        let mut sampling = Sampling {
            frequency_penalty: 0.5,
            ..Sampling::default()
        };
        let reason = Reports::Model.allows(&sampling).unwrap_err();
        assert!(reason.contains("processed_logprobs"), "{reason}");
        Reports::Tempered.allows(&sampling).unwrap();
        sampling.top_k = 4;
        Reports::Tempered.allows(&sampling).unwrap_err();
        Reports::Drawn.allows(&sampling).unwrap();
        sampling.top_logprobs = 2;
        let reason = Reports::Drawn.allows(&sampling).unwrap_err();
        assert!(reason.contains("raw_logprobs"), "{reason}");
    }
}
