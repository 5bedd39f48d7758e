//! Calls that never end by themselves, to see what they do to everything else.

use tokio::task::JoinSet;

use super::sample;
use crate::call::CallContext;
use crate::host::Plugin;

/// Calls of a judge that loops, so many at once for as long as this lives: one that its limit has ended is
/// followed by the next. Dropping it ends them.
pub struct LoopingCalls {
    _drivers: JoinSet<()>,
}

impl LoopingCalls {
    /// Starts them. Needs a runtime of tokio.
    pub fn start(plugin: &Plugin, at_once: usize) -> LoopingCalls {
        let mut drivers = JoinSet::new();
        for _ in 0..at_once {
            let plugin = plugin.clone();
            drivers.spawn(async move {
                let trajectory = sample::conversation();
                loop {
                    let call = CallContext {
                        run_id: "measure".to_owned(),
                        ..CallContext::default()
                    };
                    // It can only end with a fault.
                    let _ = plugin.score_turn(call, &trajectory, 0).await;
                }
            });
        }
        LoopingCalls { _drivers: drivers }
    }
}
