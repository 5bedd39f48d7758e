//! The products of a layer.

use clawhost_model::{ModelConfig, Target, TargetLayer};

/// A product of a layer with a weight that may be fused from several targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Projection {
    Qkv = 0,
    O = 1,
    GateUp = 2,
    Down = 3,
}

impl Projection {
    pub(crate) const ALL: [Self; 4] = [Self::Qkv, Self::O, Self::GateUp, Self::Down];

    /// The targets, in the order of their columns.
    pub(crate) fn targets(self) -> &'static [Target] {
        match self {
            Self::Qkv => &[Target::Q, Target::K, Target::V],
            Self::O => &[Target::O],
            Self::GateUp => &[Target::Gate, Target::Up],
            Self::Down => &[Target::Down],
        }
    }

    /// Whether its output is added to the residual stream.
    pub(crate) fn adds_to_residual(self) -> bool {
        matches!(self, Self::O | Self::Down)
    }

    /// Number of inputs and outputs.
    pub(crate) fn widths(self, c: &ModelConfig) -> (usize, usize) {
        let widths = self.targets().iter().map(|target| target.widths(c));
        widths.fold((0, 0), |(_, outputs), own| (own.0, outputs + own.1))
    }

    /// The column of its output at which a target begins.
    pub(crate) fn first_column(self, c: &ModelConfig, target: Target) -> usize {
        let before = self.targets().iter().take_while(|own| **own != target);
        before.map(|own| own.widths(c).1).sum()
    }

    /// Index of its first target among all targets of a layer.
    pub(crate) fn first_target(self) -> usize {
        [0, 3, 4, 6][self as usize]
    }
}
