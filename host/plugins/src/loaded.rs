//! A component that passed every check, with what it was granted.

use std::sync::Arc;

use crate::capability::http::HttpGrant;
use crate::capability::log::LogRate;
use crate::capability::model::ModelGrant;
use crate::capability::state::StateGrant;
use crate::engine::Machine;
use crate::kind::Kind;
use crate::profile::Profile;
use crate::threads::PluginThreads;

/// What every call of a plugin shares.
pub(crate) struct Loaded {
    pub(crate) name: String,
    pub(crate) digest: String,
    pub(crate) kind: Kind,
    pub(crate) imports: Vec<String>,
    pub(crate) profile: Profile,
    pub(crate) machine: Arc<Machine>,
    pub(crate) threads: Arc<PluginThreads>,
    pub(crate) model: Option<ModelGrant>,
    pub(crate) state: Option<StateGrant>,
    pub(crate) http: Option<HttpGrant>,
    pub(crate) log_rate: LogRate,
}
