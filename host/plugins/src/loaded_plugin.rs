//! A loaded component with its capabilities: the state that all calls of a plugin share.

use std::sync::{Arc, Mutex};

use tokio::sync::Semaphore;

use crate::call_stats::CallStats;
use crate::capability::http::HttpGrant;
use crate::capability::log::LogRate;
use crate::capability::model::ModelGrant;
use crate::capability::state::StateGrant;
use crate::engine::WasmRuntime;
use crate::grants::Budgets;
use crate::inspect::Inspection;
use crate::kind::Kind;
use crate::lock::lock;
use crate::receipt::Receipt;
use crate::thread_pool::PluginThreads;
use clawhost_config::Profile;
use clawhost_sandbox::Sandboxes;

/// The call statistics of a component, shared by all plugins loaded from it under the same name.
pub(crate) type SharedStats = Arc<Mutex<CallStats>>;

/// The state that all calls of a plugin share.
pub(crate) struct LoadedPlugin {
    pub(crate) name: String,
    pub(crate) digest: String,
    pub(crate) kind: Kind,
    /// Its imports and sizes, so that its grants can change without compiling it again.
    pub(crate) inspection: Inspection,
    pub(crate) profile: Profile,
    pub(crate) runtime: Arc<WasmRuntime>,
    pub(crate) threads: PluginThreads,
    pub(crate) model: Option<ModelGrant>,
    pub(crate) state: Option<StateGrant>,
    pub(crate) http: Option<HttpGrant>,
    pub(crate) sandbox: Option<Sandboxes>,
    pub(crate) display: Option<Sandboxes>,
    /// Limits from the plugin's manifest. The lower of these and the caller's limits applies.
    pub(crate) budgets: Budgets,
    pub(crate) log_rate: LogRate,
    /// Rate limit of the host's log lines about faults: a plugin that always fails must not flood the log.
    pub(crate) fault_rate: LogRate,
    /// One permit per instance slot that this plugin may hold at a time.
    pub(crate) share: Arc<Semaphore>,
    /// Instance slots that one of its instances takes.
    pub(crate) slots: u32,
    /// Statistics of the calls of all plugins loaded from the same bytes under the same name.
    pub(crate) call_stats: SharedStats,
}

impl LoadedPlugin {
    /// Adds a call to the statistics.
    pub(crate) fn count(&self, receipt: &Receipt) {
        lock(&self.call_stats).add(receipt);
    }
}

/// Instance slots that the calls of one plugin may hold together: at most three quarters. The rest is reserved for other
/// plugins, so that a thousand calls of a slow plugin do not block the call of another one.
pub(crate) fn max_slots(instances: u32) -> u32 {
    let instances = instances.max(1);
    (instances - instances / 4).max(1)
}
