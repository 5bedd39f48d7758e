//! The models that judges may call in a replay. Loaded on the first call, since most judges call none.

use std::sync::OnceLock;

use anyhow::{Context, Result};
use clawhost_journal::Journal;
use clawhost_model::TrainedWeights;
use clawhost_plugins::{
    Answer, Message, ModelClient, ModelError, ModelRequest, ModelResponse, ToolSpec,
};

use crate::capabilities::Models;
use crate::config::Config;
use crate::serve::load_engine;

/// The configured models, with the journal's active adapter.
pub(super) struct LazyModels {
    config: Config,
    models: OnceLock<Result<Models, String>>,
}

impl LazyModels {
    /// Loads nothing yet.
    pub(super) fn new(config: Config) -> Self {
        Self {
            config,
            models: OnceLock::new(),
        }
    }

    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Models) -> Answer<Result<T, ModelError>>,
    ) -> Answer<Result<T, ModelError>> {
        let loaded = self
            .models
            .get_or_init(|| load(&self.config).map_err(|error| format!("{error:#}")));
        match loaded {
            Ok(models) => question(models),
            Err(reason) => {
                let error = ModelError::Unavailable(reason.clone());
                Box::pin(std::future::ready(Err(error)))
            }
        }
    }
}

fn load(config: &Config) -> Result<Models> {
    let engine = load_engine(config)?.engine;
    let data = &config.server.data_dir;
    if let Some(row) = Journal::open_read_only(data)?.active_adapter()? {
        let weights = TrainedWeights::load(&data.join(&row.path), engine.model())
            .with_context(|| format!("cannot load adapter version {}", row.version))?;
        engine.publish(row.version, Some(weights));
    }
    Models::new(engine, &config.models)
}

impl ModelClient for LazyModels {
    fn complete(&self, request: ModelRequest) -> Answer<Result<ModelResponse, ModelError>> {
        self.ask(|models| models.complete(request))
    }

    fn score(
        &self,
        model: String,
        messages: Vec<Message>,
        completion: String,
    ) -> Answer<Result<Vec<f32>, ModelError>> {
        self.ask(|models| models.score(model, messages, completion))
    }

    fn count(
        &self,
        model: String,
        messages: Vec<Message>,
        tools: Vec<ToolSpec>,
        completion: String,
    ) -> Answer<Result<Option<u64>, ModelError>> {
        self.ask(|models| models.count(model, messages, tools, completion))
    }
}
