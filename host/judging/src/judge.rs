//! Asking one component, whatever it is asked about: a turn, the choices of a request, or what followed a reply.

use std::future::Future;
use std::pin::Pin;

use clawhost_plugins::{CallContext, Called, Extraction, Judged, Plugin, Trajectory, Verdict};

/// An answer that is being waited for.
pub(crate) type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What can have a seat: a component, or in tests a stand-in for one.
pub(crate) trait Asked: Send + Sync {
    /// Name under which it was loaded.
    fn name(&self) -> &str;
    /// sha256 of the component, in hex.
    fn digest(&self) -> &str;
}

/// A judge of single turns.
pub(crate) trait Judge: Asked {
    /// Judges one turn of a trajectory.
    fn score<'a>(
        &'a self,
        call: CallContext,
        trajectory: &'a Trajectory,
        turn: u32,
    ) -> Answer<'a, Judged>;
}

/// A judge of all choices of a request together.
pub(crate) trait GroupJudge: Asked {
    /// Judges the last turn of each trajectory; one verdict for each, in order.
    fn score_group<'a>(
        &'a self,
        call: CallContext,
        group: &'a [Trajectory],
    ) -> Answer<'a, Called<Vec<Verdict>>>;
}

/// What makes advice of what followed a reply.
pub(crate) trait HintExtractor: Asked {
    /// Extracts a hint from what followed one turn of a trajectory.
    fn extract<'a>(
        &'a self,
        call: CallContext,
        trajectory: &'a Trajectory,
        turn: u32,
    ) -> Answer<'a, Called<Extraction>>;
}

impl Asked for Plugin {
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
    ) -> Answer<'a, Judged> {
        Box::pin(self.score_turn(call, trajectory, turn))
    }
}

impl GroupJudge for Plugin {
    fn score_group<'a>(
        &'a self,
        call: CallContext,
        group: &'a [Trajectory],
    ) -> Answer<'a, Called<Vec<Verdict>>> {
        Box::pin(Plugin::score_group(self, call, group))
    }
}

impl HintExtractor for Plugin {
    fn extract<'a>(
        &'a self,
        call: CallContext,
        trajectory: &'a Trajectory,
        turn: u32,
    ) -> Answer<'a, Called<Extraction>> {
        Box::pin(self.extract_hint(call, trajectory, turn))
    }
}

/// A turn's own seed: SplitMix64 of the run's seed and the turn's number, so that neighbouring
/// turns and neighbouring runs share nothing.
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
    fn seeds_are_stable_and_apart() {
        assert_eq!(seed(1, 2), seed(1, 2));
        let mut seeds: Vec<u64> = (0..10)
            .flat_map(|run| (0..10).map(move |turn| seed(run, turn)))
            .collect();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 100);
    }
}
