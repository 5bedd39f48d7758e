//! Endless calls, to measure how they affect other work.

use tokio::task::JoinSet;

use super::sample;
use crate::call::CallContext;
use crate::host::Plugin;

/// Keeps a number of calls of an endless judge running: when a limit ends one, the next starts. Dropping it ends them.
pub struct LoopingCalls {
    _drivers: JoinSet<()>,
}

impl LoopingCalls {
    /// Starts the calls. Must be called in a Tokio runtime.
    pub fn start(plugin: &Plugin, concurrency: usize) -> LoopingCalls {
        let mut drivers = JoinSet::new();
        for _ in 0..concurrency {
            let plugin = plugin.clone();
            drivers.spawn(async move {
                let trajectory = sample::conversation();
                loop {
                    let call = CallContext {
                        run_id: "measure".to_owned(),
                        ..CallContext::default()
                    };
                    // The call always ends with a fault.
                    let _ = plugin.score_turn(call, &trajectory, 0).await;
                }
            });
        }
        LoopingCalls { _drivers: drivers }
    }
}
