//! `GET /v1/plugins`: active, rejected and revoked plugins. `POST /v1/plugins/reload`: reloads changed plugin files now,
//! instead of at the next periodic check, and returns the same list.

use axum::Json;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::error::ApiError;
use crate::keys::Scope;
use crate::shared::Client;

/// All plugins.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct PluginList {
    #[schemars(extend("const" = "list"))]
    object: &'static str,
    #[schemars(with = "Vec<Value>")]
    data: Value,
}

impl PluginList {
    fn new(data: Value) -> Json<Self> {
        Json(Self {
            object: "list",
            data,
        })
    }
}

/// Lists the plugins.
pub(crate) async fn list(Client { shared, caller }: Client) -> Result<Json<PluginList>, ApiError> {
    caller.require(Scope::Operator)?;
    let mut status = shared.status.status();
    // A server without judging has no plugins.
    let plugins = status
        .get_mut("plugins")
        .map_or_else(|| Value::Array(Vec::new()), Value::take);
    Ok(PluginList::new(plugins))
}

/// Reloads changed plugins and lists all of them, each with its rejected build, if any.
pub(crate) async fn reload(
    Client { shared, caller }: Client,
) -> Result<Json<PluginList>, ApiError> {
    caller.require(Scope::Operator)?;
    let plugins = shared
        .run_blocking(|shared| {
            shared.control.reload_plugins().ok_or_else(|| {
                ApiError::not_found(
                    "no_plugins",
                    "this server has no plugins to reload".to_owned(),
                )
            })
        })
        .await?;
    Ok(PluginList::new(plugins))
}
