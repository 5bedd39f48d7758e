//! `judge-plugin`: scores one turn.

use std::sync::Arc;

use wasmtime::component::InstancePre;

use crate::call::CallContext;
use crate::conversation::Trajectory;
use crate::convert;
use crate::fault::Fault;
use crate::invoke::{self, Stop};
use crate::loaded::Loaded;
use crate::receipt::Receipt;
use crate::store::CallState;
use crate::verdict::Verdict;

#[allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    unsafe_code,
    clippy::all,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "generated code"
)]
mod bindings {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "clawhost:plugin/judge-plugin",
        imports: { default: async | trappable },
        exports: { default: async },
        with: {
            "clawhost:plugin/types@0.1.0": crate::bindings::types,
            "clawhost:plugin/log@0.1.0": crate::bindings::log,
            "clawhost:plugin/context@0.1.0": crate::bindings::context,
            "clawhost:plugin/model@0.1.0": crate::bindings::model,
            "clawhost:plugin/state@0.1.0": crate::bindings::state,
        },
    });
}

pub(crate) use bindings::JudgePluginPre;

/// Checks once, at load, that the export has the types of the contract.
pub(crate) fn prepare(pre: InstancePre<CallState>) -> wasmtime::Result<JudgePluginPre<CallState>> {
    JudgePluginPre::new(pre)
}

/// Runs one call on the plugin threads.
pub(crate) async fn score_turn(
    loaded: Arc<Loaded>,
    pre: JudgePluginPre<CallState>,
    call: CallContext,
    trajectory: &Trajectory,
    turn_index: u32,
) -> (Result<Verdict, Fault>, Receipt) {
    let trajectory = convert::trajectory_to_guest(trajectory);
    let rules = call.limits.verdict;
    invoke::on_plugin_threads(loaded, call, move |store| {
        Box::pin(async move {
            let plugin = pre
                .instantiate_async(&mut *store)
                .await
                .map_err(Stop::while_linking)?;
            let answer = plugin
                .clawhost_plugin_judge()
                .call_score_turn(&mut *store, &trajectory, turn_index)
                .await
                .map_err(Stop::while_running)?;
            let verdict = convert::verdict_from_guest(answer.map_err(Stop::plugin_error)?);
            rules.check(&verdict).map_err(Stop::BadOutput)?;
            Ok(verdict)
        })
    })
    .await
}
