//! `[training.pairs]`: preference losses on complaints that were followed by an accepted reply.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::rules::{
    OptionsError, require_at_least_one, require_non_negative, require_positive, require_timeout,
};

/// The loss of a pair. Default: none.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum PairLoss {
    /// Pairs are not trained on.
    #[default]
    None,
    /// Mean negative log-likelihood of the accepted reply. Replies that were accepted at once are trained on too.
    Sft,
    /// −log sigmoid(beta · ((lp_c − ref_c) − (lp_r − ref_r))), with the log-probs of the accepted reply c and the rejected
    /// reply r under the policy and the base model (Rafailov et al. 2023).
    Dpo,
    /// ((lp_c − ref_c) − (lp_r − ref_r) − 1 / (2 · beta))² (Azar et al. 2023), which has a finite optimum.
    Ipo,
    /// A pair-loss plugin. The coefficients of its formula are its own settings, `[plugins.config.NAME]`.
    Component,
}

/// `[training.pairs]`. A complaint followed by an accepted reply gives a pair for the prompt before the complaint: the
/// accepted reply against the first, rejected one. Pairs come from the journal and are replayed: each optimizer update
/// of a step draws some of the newest ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PairOptions {
    /// The loss: `none`, `sft`, `dpo`, `ipo`, or `component` for that of a pair-loss plugin. Default `none`; `sft` for models of at least 50 million parameters.
    pub loss: PairLoss,
    /// Weight of the mean pair loss next to the loss of the samples. Default 1.
    pub coef: f64,
    /// Strength of the reference in `dpo` and `ipo`. Default 0.1.
    pub beta: f64,
    /// `dpo` and `ipo`: weight of the accepted reply's mean negative log-likelihood, added to each pair's loss. Default 0.2.
    pub sft_coef: f64,
    /// `dpo`, `ipo` and `component`: a pair whose reward margin, `beta` times the margin of the accepted reply over the base model in nats,
    /// exceeds this is satisfied: it has no gradient and is not drawn again in the step. Where samples do not train, a step
    /// without few-shot distillation ends when each drawn pair is satisfied. 0 = no limit. Default 5.
    pub max_reward_margin: f64,
    /// Pairs that each optimizer update draws. Default 6.
    pub per_update: usize,
    /// Newest pairs that an update draws from. Default 64.
    pub window: usize,
    /// Only replies that were accepted after the first of this many newest complaints are used, so that a wish that is taken back
    /// does not keep training; 0 = no limit. Default 12.
    pub newest_complaints: usize,
    /// A wish has changed once, since some first reply, this many more first replies were complained about than were accepted at
    /// once. What was accepted before that reply is not used; 0 = no limit. Default 3.
    pub change_complaints: usize,
    /// Pairs whose accepted reply is older are not used. Default "90d".
    #[serde(with = "crate::DurationText")]
    pub max_age: Duration,
}

impl Default for PairOptions {
    fn default() -> Self {
        Self {
            loss: PairLoss::None,
            coef: 1.0,
            beta: 0.1,
            sft_coef: 0.2,
            max_reward_margin: 5.0,
            per_update: 6,
            window: 64,
            newest_complaints: 12,
            change_complaints: 3,
            max_age: Duration::from_secs(90 * 86_400),
        }
    }
}

impl PairOptions {
    pub(super) fn validate(&self) -> Result<(), OptionsError> {
        require_positive("training.pairs.coef", self.coef)?;
        require_positive("training.pairs.beta", self.beta)?;
        require_non_negative("training.pairs.sft_coef", self.sft_coef)?;
        require_non_negative("training.pairs.max_reward_margin", self.max_reward_margin)?;
        require_at_least_one("training.pairs.per_update", self.per_update)?;
        require_at_least_one("training.pairs.window", self.window)?;
        require_timeout("training.pairs.max_age", self.max_age)
    }
}
