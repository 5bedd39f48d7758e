//! The interfaces of judges, hint extractors and filters. [`Plugin`] implements them; tests use fakes.

use std::future::Future;
use std::pin::Pin;

use clawhost_plugins::{
    CallContext, CallResult, Decision, Extraction, JudgeResult, Plugin, Trajectory, Verdict,
};

/// The future of a component call.
pub(crate) type CallFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A component that can occupy a slot.
pub(crate) trait Component: Send + Sync {
    /// The name under which it was loaded.
    fn name(&self) -> &str;
    /// sha256 of the component, in hex.
    fn digest(&self) -> &str;
}

/// A single-turn judge.
pub(crate) trait Judge: Component {
    /// Judges one turn of a trajectory.
    fn score<'a>(
        &'a self,
        call: CallContext,
        trajectory: &'a Trajectory,
        turn: u32,
    ) -> CallFuture<'a, JudgeResult>;
}

/// A judge of all choices of a request.
pub(crate) trait GroupJudge: Component {
    /// Judges the last turn of each trajectory; returns one verdict per trajectory, in order.
    fn score_group<'a>(
        &'a self,
        call: CallContext,
        group: &'a [Trajectory],
    ) -> CallFuture<'a, CallResult<Vec<Verdict>>>;
}

/// A component that turns the next state of a reply into advice.
pub(crate) trait HintExtractor: Component {
    /// Extracts a hint from the next state of one turn of a trajectory.
    fn extract<'a>(
        &'a self,
        call: CallContext,
        trajectory: &'a Trajectory,
        turn: u32,
    ) -> CallFuture<'a, CallResult<Extraction>>;
}

/// A component that decides whether a turn that would train does.
pub(crate) trait TurnFilter: Component {
    /// Decides about one turn of a trajectory; `reward` is none where hints alone would train it.
    fn decide<'a>(
        &'a self,
        call: CallContext,
        trajectory: &'a Trajectory,
        turn: u32,
        reward: Option<f32>,
    ) -> CallFuture<'a, CallResult<Decision>>;
}

impl Component for Plugin {
    fn name(&self) -> &str {
        Plugin::name(self)
    }

    fn digest(&self) -> &str {
        Plugin::digest(self)
    }
}

impl Judge for Plugin {
    fn score<'a>(
        &'a self,
        call: CallContext,
        trajectory: &'a Trajectory,
        turn: u32,
    ) -> CallFuture<'a, JudgeResult> {
        Box::pin(self.score_turn(call, trajectory, turn))
    }
}

impl GroupJudge for Plugin {
    fn score_group<'a>(
        &'a self,
        call: CallContext,
        group: &'a [Trajectory],
    ) -> CallFuture<'a, CallResult<Vec<Verdict>>> {
        Box::pin(Plugin::score_group(self, call, group))
    }
}

impl HintExtractor for Plugin {
    fn extract<'a>(
        &'a self,
        call: CallContext,
        trajectory: &'a Trajectory,
        turn: u32,
    ) -> CallFuture<'a, CallResult<Extraction>> {
        Box::pin(self.extract_hint(call, trajectory, turn))
    }
}

impl TurnFilter for Plugin {
    fn decide<'a>(
        &'a self,
        call: CallContext,
        trajectory: &'a Trajectory,
        turn: u32,
        reward: Option<f32>,
    ) -> CallFuture<'a, CallResult<Decision>> {
        Box::pin(self.filter_turn(call, trajectory, turn, reward))
    }
}

/// The seed of a turn: SplitMix64 of the run's seed and the turn's number, so that the seeds of neighbouring turns and
/// runs are unrelated.
pub(crate) fn seed(run: u64, turn: i64) -> u64 {
    let mix = |value: u64| {
        let z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    mix(mix(run) ^ turn.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_stable_and_distinct() {
        assert_eq!(seed(1, 2), seed(1, 2));
        let mut seeds: Vec<u64> = (0..10)
            .flat_map(|run| (0..10).map(move |turn| seed(run, turn)))
            .collect();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 100);
    }
}
