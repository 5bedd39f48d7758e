//! The kinds of plugin. A component's export decides its kind.

use serde::Serialize;

use crate::grants::Capability;

/// The kind of a plugin, decided by what the component exports and never by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Scores turns.
    Judge,
    /// Scores all samples of one prompt together.
    GroupJudge,
    /// Extracts a hint from the messages that followed a response.
    Hint,
    /// Decides whether a turn that would train does.
    Filter,
    /// A training objective.
    Loss,
    /// A loss on preference pairs.
    PairLoss,
    /// Estimates advantages from rewards.
    Advantage,
    /// Decides whether a new adapter is published.
    Gate,
    /// An environment that the policy acts in.
    Environment,
}

impl Kind {
    /// All kinds, in the order of the WIT package.
    pub const ALL: [Kind; 9] = [
        Kind::Judge,
        Kind::GroupJudge,
        Kind::Hint,
        Kind::Filter,
        Kind::Loss,
        Kind::PairLoss,
        Kind::Advantage,
        Kind::Gate,
        Kind::Environment,
    ];

    /// The interface of `clawhost:plugin` that a component of this kind exports.
    pub fn interface(self) -> &'static str {
        match self {
            Kind::Judge => "judge",
            Kind::GroupJudge => "group-judge",
            Kind::Hint => "hint-extractor",
            Kind::Filter => "filter",
            Kind::Loss => "loss",
            Kind::PairLoss => "pair-loss",
            Kind::Advantage => "advantage",
            Kind::Gate => "gate",
            Kind::Environment => "environment",
        }
    }

    /// The world that a component of this kind targets.
    pub fn world(self) -> &'static str {
        match self {
            Kind::Judge => "judge-plugin",
            Kind::GroupJudge => "group-judge-plugin",
            Kind::Hint => "hint-plugin",
            Kind::Filter => "filter-plugin",
            Kind::Loss => "loss-plugin",
            Kind::PairLoss => "pair-loss-plugin",
            Kind::Advantage => "advantage-plugin",
            Kind::Gate => "gate-plugin",
            Kind::Environment => "environment-plugin",
        }
    }

    /// Whether the world of this kind includes the capability.
    pub fn may_import(self, capability: Capability) -> bool {
        use Capability::{Context, Display, Http, Log, Model, Sandbox, State};
        match self {
            Kind::Judge | Kind::GroupJudge => {
                matches!(capability, Log | Context | Model | State | Http)
            }
            Kind::Hint | Kind::Filter => matches!(capability, Log | Context | Model | State),
            Kind::Loss | Kind::PairLoss | Kind::Advantage | Kind::Gate => {
                matches!(capability, Log | Context)
            }
            Kind::Environment => {
                matches!(capability, Log | Context | State | Http | Sandbox | Display)
            }
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.interface())
    }
}
