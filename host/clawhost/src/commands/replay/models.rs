//! The models that judges may ask in a replay, loaded when the first one is asked: most judges ask none.

use std::sync::OnceLock;

use anyhow::{Context, Result};
use clawhost_journal::Journal;
use clawhost_plugins::{
    Answer, Message, ModelClient, ModelError, ModelRequest, ModelResponse, ToolSpec,
};
use clawhost_policy::Learned;

use crate::capabilities::Models;
use crate::config::Config;
use crate::serve::engine;

/// Models of a configuration, with the adapter that its journal says is active.
pub(super) struct Lazily {
    config: Config,
    models: OnceLock<Result<Models, String>>,
}

impl Lazily {
    /// Loads nothing yet.
    pub(super) fn new(config: Config) -> Self {
        Self {
            config,
            models: OnceLock::new(),
        }
    }

    fn models(&self) -> Result<&Models, ModelError> {
        let loaded = self
            .models
            .get_or_init(|| load(&self.config).map_err(|error| format!("{error:#}")));
        loaded
            .as_ref()
            .map_err(|reason| ModelError::Unavailable(reason.clone()))
    }
}

fn load(config: &Config) -> Result<Models> {
    let (engine, _) = engine(config)?;
    let data = &config.server.data;
    if let Some(row) = Journal::open_read_only(data)?.active_adapter()? {
        let learned = Learned::load(&data.join(&row.path), engine.model())
            .with_context(|| format!("adapter version {} cannot be loaded", row.version))?;
        engine.publish(row.version, Some(learned));
    }
    Models::new(engine, &config.models)
}

impl ModelClient for Lazily {
    fn complete(&self, request: ModelRequest) -> Answer<Result<ModelResponse, ModelError>> {
        match self.models() {
            Ok(models) => models.complete(request),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn score(
        &self,
        model: String,
        messages: Vec<Message>,
        completion: String,
    ) -> Answer<Result<Vec<f32>, ModelError>> {
        match self.models() {
            Ok(models) => models.score(model, messages, completion),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn count(
        &self,
        model: String,
        messages: Vec<Message>,
        tools: Vec<ToolSpec>,
        completion: String,
    ) -> Answer<Result<Option<u64>, ModelError>> {
        match self.models() {
            Ok(models) => models.count(model, messages, tools, completion),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }
}
