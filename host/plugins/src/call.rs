//! The context of one plugin call: its identity, settings and limits.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clawhost_config::Limits;

use crate::kind::Kind;

/// Length of one tick of the CPU budget.
pub const TICK: Duration = Duration::from_millis(10);

/// Identity, settings and limits of one call. In the deterministic profile the same context and input give the same
/// result.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CallContext {
    /// The run or server that makes the call. A plugin's durable state is scoped to it.
    pub run_id: String,
    /// The sample or turn that is judged.
    pub sample_id: String,
    /// 0 for the first attempt. Each attempt derives another seed.
    pub attempt: u32,
    /// Seed of the run.
    pub seed: u64,
    /// Plugin settings from the configuration, each value as JSON text.
    pub settings: BTreeMap<String, String>,
    /// Limits of the call.
    pub limits: Limits,
    /// Existing directory that gets a screenshot of each observation of a display. Default none: no screenshot is stored.
    pub artifacts: Option<PathBuf>,
}

impl Kind {
    /// The default limits of a call of this kind.
    pub fn default_limits(self) -> Limits {
        match self {
            Kind::Loss | Kind::PairLoss | Kind::Advantage => Limits::for_tensors(),
            Kind::Environment => Limits::for_environments(),
            Kind::Judge | Kind::GroupJudge | Kind::Hint | Kind::Filter | Kind::Gate => {
                Limits::default()
            }
        }
    }
}
