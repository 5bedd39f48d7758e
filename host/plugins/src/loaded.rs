//! A component that passed every check, with what it was granted.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Semaphore;

use crate::account::Account;
use crate::capability::http::HttpGrant;
use crate::capability::log::LogRate;
use crate::capability::model::ModelGrant;
use crate::capability::state::StateGrant;
use crate::engine::Machine;
use crate::grants::Budgets;
use crate::inspect::Inspection;
use crate::kind::Kind;
use crate::profile::Profile;
use crate::receipt::Receipt;
use crate::threads::PluginThreads;

/// The account of a component, shared by all that were loaded from it.
pub(crate) type SharedAccount = Arc<Mutex<Account>>;

/// What every call of a plugin shares.
pub(crate) struct Loaded {
    pub(crate) name: String,
    pub(crate) digest: String,
    pub(crate) kind: Kind,
    /// What it asks for, so that it can be granted something else without being compiled again.
    pub(crate) inspection: Inspection,
    pub(crate) profile: Profile,
    pub(crate) machine: Arc<Machine>,
    pub(crate) threads: Arc<PluginThreads>,
    pub(crate) model: Option<ModelGrant>,
    pub(crate) state: Option<StateGrant>,
    pub(crate) http: Option<HttpGrant>,
    /// Limits of the plugin's own, below those of any caller.
    pub(crate) budgets: Budgets,
    pub(crate) log_rate: LogRate,
    /// What the host says about faults: a plugin that always fails must not fill the log.
    pub(crate) fault_rate: LogRate,
    /// One permit for each place that this plugin may hold at a time.
    pub(crate) share: Arc<Semaphore>,
    /// Places that one of its instances takes.
    pub(crate) places: u32,
    /// What its calls came to, over all that were loaded from the same bytes under the same name.
    pub(crate) account: SharedAccount,
}

impl Loaded {
    /// Adds a call to the account.
    pub(crate) fn count(&self, receipt: &Receipt) {
        let mut account = self.account.lock().unwrap_or_else(PoisonError::into_inner);
        account.add(receipt);
    }
}

/// Places that calls of one plugin may hold together. The rest stays for the others: a thousand calls
/// that use up their budgets must not stand before the call of a good judge.
pub(crate) fn share_of(instances: u32) -> u32 {
    let instances = instances.max(1);
    (instances - instances / 4).max(1)
}
