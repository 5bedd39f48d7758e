//! Adapters on the server: written to a shared directory, loaded by name, verified, and unloaded when no request or
//! other holder uses them any more.
//!
//! A name contains version and digest, so it always means the same weights. An adapter is unloaded when its reference
//! count here drops to zero.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use clawhost_engine::{LoadedVersion, SamplingParams};
use clawhost_model::{Adapter, TrainedWeights};
use serde_json::json;

use crate::client::{RemoteClient, mean_difference, run_blocking, server_logprobs};
use crate::error::adapters_fix;
use crate::http::CallError;
use crate::wire::WireFormat;

/// Digits of the digest in an adapter name.
const DIGEST_DIGITS: usize = 12;
/// Two versions whose log-probs differ by less than this many times the server's noise cannot be distinguished by a few
/// tokens.
const MIN_VISIBLE_DIFFERENCE: f64 = 4.0;
/// Minimum noise, from f32 rounding.
const MIN_NOISE: f64 = 1e-5;

/// The adapters that are loaded on the server.
#[derive(Debug, Default)]
pub(crate) struct Adapters {
    loaded: Mutex<BTreeMap<String, Weak<Adapter>>>,
    /// Serializes loads; requests with loaded adapters do not wait for it.
    loading: tokio::sync::Mutex<()>,
}

/// Why a version could not be published.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PublishFailure {
    pub(crate) reason: String,
    /// Whether to retry once the server is back.
    pub(crate) retryable: bool,
}

impl PublishFailure {
    fn permanent(reason: String) -> Self {
        Self {
            reason,
            retryable: false,
        }
    }

    fn from_call_error(error: &CallError, client: &RemoteClient, what: &str) -> Self {
        let (url, kind) = (&client.options.url, client.options.backend);
        let fix = match error {
            CallError::Status { .. } => format!("; {}", adapters_fix(kind)),
            _ => String::new(),
        };
        Self {
            reason: format!("{what} on the server at {url} failed: {error}{fix}"),
            retryable: error.is_unreachable(),
        }
    }
}

/// The adapter name of a version; `None` for the base model.
pub(crate) fn adapter_name(version: &LoadedVersion) -> Option<String> {
    version.adapter()?;
    let digest: String = version.digest().chars().take(DIGEST_DIGITS).collect();
    Some(format!("clawhost-v{}-{digest}", version.version))
}

impl Adapters {
    fn lock_loaded(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Weak<Adapter>>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks an adapter as not loaded.
    pub(crate) fn forget(&self, name: &str) {
        self.lock_loaded().remove(name);
    }

    /// Loads the adapter of a version if necessary and returns its name.
    pub(crate) async fn ensure_loaded(
        &self,
        client: &RemoteClient,
        version: &LoadedVersion,
    ) -> Result<Option<String>, PublishFailure> {
        let adapter = match &version.weights {
            None => return Ok(None),
            Some(TrainedWeights::Lora(adapter)) => adapter,
            Some(TrainedWeights::Full(_)) => {
                return Err(PublishFailure::permanent(
                    "a remote backend cannot load full weights; set training.parameters = \"lora\", or remove [engine.remote]".to_owned(),
                ));
            }
        };
        let Some(name) = adapter_name(version) else {
            return Ok(None);
        };
        if self.lock_loaded().contains_key(&name) {
            return Ok(Some(name));
        }
        let _one = self.loading.lock().await;
        if !self.lock_loaded().contains_key(&name) {
            self.load(client, &name, adapter).await?;
        }
        Ok(Some(name))
    }

    async fn load(
        &self,
        client: &RemoteClient,
        name: &str,
        adapter: &Arc<Adapter>,
    ) -> Result<(), PublishFailure> {
        let dir = write_adapter(client, name, adapter).await?;
        let body = json!({"lora_name": name, "lora_path": dir});
        let path = client.options.backend.adapter_path(true);
        let key = "engine.remote.adapter_load_timeout";
        match client
            .http
            .call(path, &body, client.options.adapter_load_timeout, key)
            .await
        {
            Ok(response) => check_success(&response).map_err(|error| {
                PublishFailure::from_call_error(&error, client, "loading an adapter")
            })?,
            // It was loaded earlier with the same bytes: the name contains the digest.
            Err(CallError::Status { message, .. }) if message.contains("already") => {}
            Err(error) => {
                return Err(PublishFailure::from_call_error(
                    &error,
                    client,
                    "loading an adapter",
                ));
            }
        }
        self.lock_loaded()
            .insert(name.to_owned(), Arc::downgrade(adapter));
        Ok(())
    }

    /// Loads a version on the server and verifies that the server uses it.
    pub(crate) async fn publish(
        &self,
        client: &RemoteClient,
        version: &LoadedVersion,
        logprob_noise: f64,
    ) -> Result<(), PublishFailure> {
        let Some(name) = self.ensure_loaded(client, version).await? else {
            return Ok(());
        };
        let verified = match verify_adapter(client, version, &name, logprob_noise).await {
            // The server restarted and lost the adapter.
            Err(VerifyError::Call(error)) if error.may_lack_adapter() => {
                self.forget(&name);
                self.ensure_loaded(client, version).await?;
                verify_adapter(client, version, &name, logprob_noise).await
            }
            other => other,
        };
        let Err(error) = verified else {
            return Ok(());
        };
        self.unload(client, &name).await;
        Err(match error {
            VerifyError::Call(error) => {
                PublishFailure::from_call_error(&error, client, "verifying an adapter")
            }
            VerifyError::Mismatch(reason) => PublishFailure::permanent(reason),
        })
    }

    /// After a reconnect: loads all adapters that are still in use.
    pub(crate) async fn reload_all(&self, client: &RemoteClient) -> Result<(), PublishFailure> {
        let loaded: Vec<(String, Weak<Adapter>)> = std::mem::take(&mut *self.lock_loaded())
            .into_iter()
            .collect();
        for (name, adapter) in loaded {
            if let Some(adapter) = adapter.upgrade() {
                let _one = self.loading.lock().await;
                let loaded = self.load(client, &name, &adapter).await;
                if loaded.is_err() {
                    // Keep it for the next attempt.
                    self.lock_loaded().insert(name, Arc::downgrade(&adapter));
                }
                loaded?;
            }
        }
        Ok(())
    }

    /// Unloads adapters without holders.
    pub(crate) async fn unload_unused(&self, client: &RemoteClient) {
        let idle: Vec<String> = {
            let loaded = self.lock_loaded();
            let idle = loaded.iter().filter(|(_, held)| held.strong_count() == 0);
            idle.map(|(name, _)| name.clone()).collect()
        };
        for name in idle {
            self.unload(client, &name).await;
        }
    }

    async fn unload(&self, client: &RemoteClient, name: &str) {
        self.forget(name);
        let path = client.options.backend.adapter_path(false);
        let body = json!({"lora_name": name});
        let key = "engine.remote.adapter_load_timeout";
        let limit = client.options.adapter_load_timeout;
        if let Err(error) = client.http.call(path, &body, limit, key).await {
            tracing::warn!(name, %error, "cannot unload an adapter; the server evicts it when it needs the space");
        }
        if let Some(dir) = adapter_dir(client, name)
            && let Err(error) = tokio::fs::remove_dir_all(&dir).await
        {
            tracing::debug!(dir = %dir.display(), %error, "cannot remove an adapter directory");
        }
    }
}

fn adapter_dir(client: &RemoteClient, name: &str) -> Option<PathBuf> {
    client
        .options
        .adapter_dir
        .as_ref()
        .map(|dir| dir.join(name))
}

/// Writes an adapter to a temporary directory and renames it.
async fn write_adapter(
    client: &RemoteClient,
    name: &str,
    adapter: &Arc<Adapter>,
) -> Result<PathBuf, PublishFailure> {
    let dir = adapter_dir(client, name).ok_or_else(|| {
        PublishFailure::permanent(
            "adapters need a directory shared with the server; set engine.remote.adapter_dir"
                .to_owned(),
        )
    })?;
    let (adapter, base) = (Arc::clone(adapter), client.options.model.clone());
    let place = dir.clone();
    let result = run_blocking(move || {
        write_adapter_blocking(&place, &adapter, &base)
            .map_err(|reason| CallError::Malformed(reason.to_string()))
    });
    match result.await {
        Ok(()) => Ok(dir),
        Err(error) => Err(PublishFailure::permanent(format!(
            "cannot write the adapter to {}: {error}",
            dir.display()
        ))),
    }
}

fn write_adapter_blocking(
    place: &Path,
    adapter: &Adapter,
    base: &str,
) -> Result<(), Box<dyn std::error::Error>> {
    if place.is_dir() {
        return Ok(());
    }
    let temporary = place.with_extension(format!("writing-{}", std::process::id()));
    let _left = std::fs::remove_dir_all(&temporary);
    std::fs::create_dir_all(&temporary)?;
    adapter.save_peft(&temporary, base)?;
    std::fs::rename(&temporary, place)?;
    Ok(())
}

/// SGLang reports failures as `success: false` with status 200; vLLM answers in plain text.
fn check_success(response: &str) -> Result<(), CallError> {
    let value: Option<serde_json::Value> = serde_json::from_str(response).ok();
    let success = value
        .as_ref()
        .and_then(|value| value.get("success")?.as_bool());
    match success {
        Some(false) => Err(CallError::Status {
            status: 200,
            message: clawhost_http::error_message(response),
        }),
        _ => Ok(()),
    }
}

enum VerifyError {
    Call(CallError),
    Mismatch(String),
}

impl From<CallError> for VerifyError {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

/// Verifies that the server's log-probs under an adapter name are those of the version and not those of the base model.
/// With r returned by the server, a of the version and b of the base model, `Σ(r − b)(a − b) / Σ(a − b)²` is 1 for the
/// version and 0 for the base model; it is checked only if the two differ by more than the server's noise.
async fn verify_adapter(
    client: &RemoteClient,
    version: &LoadedVersion,
    name: &str,
    logprob_noise: f64,
) -> Result<(), VerifyError> {
    let sampled = client
        .sample_replies(Some(name), &SamplingParams::default())
        .await?;
    let returned = server_logprobs(&sampled);
    let version = client.score_locally(version, &sampled).await?;
    let base = client
        .score_locally(&LoadedVersion::base(client.backend.model()), &sampled)
        .await?;
    let mean = mean_difference(&version, &returned);
    let (url, allowed) = (&client.options.url, client.options.max_logprob_difference);
    if mean > allowed {
        return Err(VerifyError::Mismatch(format!(
            "the server at {url} does not use the adapter {name}: log-probs of the same tokens differ by {mean:.3} on average, engine.remote.max_logprob_difference allows {allowed}"
        )));
    }
    if mean_difference(&version, &base) > MIN_VISIBLE_DIFFERENCE * logprob_noise.max(MIN_NOISE) {
        let (mut along, mut square) = (0.0, 0.0);
        for ((r, a), b) in returned.iter().zip(&version).zip(&base) {
            let step = f64::from(*a) - f64::from(*b);
            along += (f64::from(*r) - f64::from(*b)) * step;
            square += step * step;
        }
        let share = along / square;
        if share < 0.5 {
            return Err(VerifyError::Mismatch(format!(
                "the server at {url} answers {name} with the base model (only {share:.2} of the adapter's effect); {}",
                adapters_fix(client.options.backend)
            )));
        }
    }
    Ok(())
}
