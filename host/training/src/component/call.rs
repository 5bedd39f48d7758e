//! How components are called, and the receipts of their calls.

use std::sync::{Arc, Mutex, PoisonError};

use clawhost_config::PluginsConfig;
use clawhost_plugins::{CallContext, CallResult, Fault, Plugin, Receipt};
use tokio::runtime::Handle;

/// Receipts of the component calls of one step. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Receipts(Arc<Mutex<Vec<Receipt>>>);

/// How components are called.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ComponentOptions {
    /// Settings and limits of the components.
    pub plugins: PluginsConfig,
    /// Seed of the run.
    pub seed: u64,
    /// Whether `training.method` has a teacher; without one, a loss that needs it is rejected. Default false.
    pub teacher: bool,
    /// Whether `training.pairs.loss` is that of a component. Default false.
    pub pair_loss: bool,
}

impl ComponentOptions {
    pub(super) fn context(&self, plugin: &Plugin, id: String) -> CallContext {
        CallContext {
            run_id: "training".to_owned(),
            sample_id: id,
            seed: self.seed,
            settings: self.plugins.settings(plugin.name()),
            limits: self
                .plugins
                .limits(plugin.name(), &plugin.kind().default_limits()),
            ..CallContext::default()
        }
    }
}

impl Receipts {
    /// Removes and returns all receipts.
    pub(crate) fn drain(&self) -> Vec<Receipt> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Blocks the trainer's thread on a component call and stores its receipt.
    pub(super) fn block_on<T>(
        &self,
        call: impl Future<Output = CallResult<T>>,
    ) -> Result<T, Fault> {
        let result = Handle::current().block_on(call);
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(result.receipt);
        result.outcome
    }
}
