//! A snapshot: what the operator page shows, at one moment. It has no field that changes while nothing happens.

use clawhost_inspect::{OperatorRecords, RecordLoader, Records, Viewer};
use serde::Serialize;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::shared::Shared;

/// The state of the server and its last records. A key that is not an operator's receives its own turns only.
#[derive(Serialize)]
pub(crate) struct Snapshot {
    object: &'static str,
    pub(crate) model: String,
    pub(crate) started_ms: i64,
    /// Version and digest of the active adapter.
    adapter: Value,
    /// What does not work; with its cause for operators.
    pub(crate) errors: Vec<String>,
    #[serde(flatten)]
    pub(crate) records: Records,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) operator: Option<OperatorView>,
}

/// The part for operators.
#[derive(Serialize)]
pub(crate) struct OperatorView {
    #[serde(flatten)]
    pub(crate) records: OperatorRecords,
    engine: Value,
    judging: Value,
    pub(crate) training: Value,
    plugins: Value,
    plugin_costs: Value,
}

impl Snapshot {
    /// A snapshot for operators, for the first paint of the page.
    pub(crate) fn for_operator(shared: &Shared) -> Result<Self, ApiError> {
        Self::take(shared, &mut RecordLoader::new(Viewer::Operator))
    }

    /// Takes a snapshot for the viewer of `loader`.
    pub(super) fn take(shared: &Shared, loader: &mut RecordLoader) -> Result<Self, ApiError> {
        let (records, operator_records) = loader.load(&shared.journal)?;
        let active = shared.versions.active(&shared.engine);
        let is_operator = operator_records.is_some();
        let errors = shared.status.health_errors();
        Ok(Self {
            object: "snapshot",
            model: shared.options.model_name.clone(),
            started_ms: shared.started_ms,
            adapter: json!({"version": active.version, "digest": active.digest()}),
            errors: errors
                .iter()
                .map(|error| match is_operator {
                    true => error.to_string(),
                    false => error.summary.to_owned(),
                })
                .collect(),
            records,
            operator: operator_records.map(|records| OperatorView::new(shared, records)),
        })
    }
}

impl OperatorView {
    fn new(shared: &Shared, records: OperatorRecords) -> Self {
        let mut status = shared.status.status();
        let mut part = |name: &str| status.get_mut(name).map_or(Value::Null, Value::take);
        let (judging, mut training, plugins) = (part("judging"), part("training"), part("plugins"));
        if let Some(training) = training.as_object_mut() {
            // The steps have it, and it is long.
            training.shift_remove("last_metrics");
        }
        let stats = shared.engine.stats();
        Self {
            records,
            engine: json!({
                "running": stats.running,
                "waiting": stats.waiting,
                "tokens_generated": stats.tokens_generated,
                "blocks": stats.blocks,
                "blocks_free": stats.blocks_free + stats.blocks_cached,
            }),
            judging,
            training,
            plugins,
            plugin_costs: shared.status.plugin_costs(),
        }
    }
}
