//! Whose adapters are trained and served.

use serde::{Deserialize, Serialize};

/// Who has an adapter of his own.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum AdapterScope {
    /// Nobody: all conversations train one adapter, which serves everybody.
    #[default]
    Shared,
    /// Each API key: its conversations train its adapter, which serves only this key. Requests without a key use and
    /// train the shared adapter.
    Key,
    /// Each `user` of a request, separately for each API key. Requests without a `user` use the adapter of their key, and
    /// without a key the shared adapter.
    User,
}
