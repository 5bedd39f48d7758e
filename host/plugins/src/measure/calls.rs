//! Calls of one plugin through the whole host.

use std::sync::Arc;
use std::time::Duration;

use super::sample::Sample;
use super::spread::{Ended, Spread, measure};
use crate::call::{CallContext, Limits};
use crate::host::{Called, Plugin};
use crate::kind::Kind;
use crate::worlds::environment::EpisodeTask;

/// Makes `calls` calls of the plugin's own kind, `at_once` at a time, each in a fresh instance: a loss is
/// evaluated, an environment goes from reset to close. An answer that declines is no failure.
pub async fn calls(plugin: &Plugin, sample: &Arc<Sample>, at_once: usize, calls: usize) -> Spread {
    let (plugin, sample) = (plugin.clone(), Arc::clone(sample));
    measure(at_once, calls, move || {
        let (plugin, sample) = (plugin.clone(), Arc::clone(&sample));
        async move { call(&plugin, &sample).await }
    })
    .await
}

async fn call(plugin: &Plugin, sample: &Sample) -> Ended {
    let call = CallContext {
        run_id: "measure".to_owned(),
        limits: Limits::of(plugin.kind()),
        ..CallContext::default()
    };
    match plugin.kind() {
        Kind::Judge => end(plugin.score_turn(call, &sample.trajectory, 0).await),
        Kind::GroupJudge => {
            let group = vec![sample.trajectory.clone(); 8];
            end(plugin.score_group(call, &group).await)
        }
        Kind::Hint => end(plugin.extract_hint(call, &sample.trajectory, 0).await),
        Kind::Loss => {
            let batch = sample.batch.clone();
            end(plugin.evaluate_loss(call, sample.needs, batch).await)
        }
        Kind::Advantage => end(plugin.compute_advantages(call, &sample.sequences).await),
        Kind::Environment => {
            let task = EpisodeTask {
                id: "measure".to_owned(),
                instruction: String::new(),
                payload: "{}".to_owned(),
            };
            let begun = plugin.start_episode(call, task, 0).await;
            match begun.outcome {
                Ok((episode, _)) => end(episode.close().await),
                Err(fault) => end(Called::<()> {
                    outcome: Err(fault),
                    receipt: begun.receipt,
                }),
            }
        }
    }
}

fn end<T>(called: Called<T>) -> Ended {
    Ended {
        failed: called
            .outcome
            .err()
            .is_some_and(|fault| !fault.is_no_answer()),
        run: Duration::from_micros(called.receipt.wall_us),
        peak_bytes: called.receipt.peak_memory_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grants::Grants;
    use crate::host::{HostOptions, PluginHost};
    use crate::measure::Peer;
    use crate::profile::Profile;

    #[tokio::test]
    async fn every_loss_of_ours_is_within_its_own_limits() {
        let host = PluginHost::new(HostOptions {
            threads: 1,
            instances: 2,
            ..HostOptions::default()
        })
        .unwrap();
        let losses: [(&str, &[u8]); 3] = [
            (
                "loss-distill-topk",
                include_bytes!("../../../../plugins/artifacts/loss-distill-topk.wasm"),
            ),
            (
                "loss-cispo",
                include_bytes!("../../../../plugins/artifacts/loss-cispo.wasm"),
            ),
            (
                "loss-ppo-clip",
                include_bytes!("../../../../plugins/artifacts/loss-ppo-clip.wasm"),
            ),
        ];
        for (name, component) in losses {
            let grants = Grants::default();
            let loaded = host.load(name, component, &grants, Profile::Deterministic);
            let plugin = loaded.unwrap();
            let sample = Arc::new(Sample::of(&plugin).await.unwrap());
            let spread = calls(&plugin, &sample, 1, 1).await;
            assert_eq!((spread.calls, spread.failed), (1, 0), "{name}: {spread:?}");
        }
    }

    #[tokio::test]
    async fn every_measurement_makes_its_calls_and_none_fails() {
        let options = HostOptions {
            threads: 2,
            instances: 8,
            ..HostOptions::default()
        };
        let component = crate::embedded("judge-next-state").unwrap();
        let host = PluginHost::new(options).unwrap();
        let plugin = host
            .load("measured", component, &Grants::default(), Profile::Fast)
            .unwrap();
        let sample = Arc::new(Sample::of(&plugin).await.unwrap());
        let spread = calls(&plugin, &sample, 4, 20).await;
        assert_eq!((spread.calls, spread.failed), (20, 0), "{spread:?}");
        assert!(spread.peak_bytes > 0);
        let peer = Peer::new(component).unwrap();
        let spread = peer.judge_calls(&sample, 4, 20).await;
        assert_eq!((spread.calls, spread.failed), (20, 0), "{spread:?}");
    }
}
