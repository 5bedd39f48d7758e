//! Adapters at the server: written where it sees them, loaded by name, made sure of, unloaded once nobody here holds
//! them any more.
//!
//! A name says version and digest, so that it never means two things. An adapter is unloaded when the last request
//! that was made with it, and everybody else here, has let go of it: that is what its count of holders says.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use clawhost_policy::{Adapter, Learned, Sampling, Served};
use serde_json::json;

use crate::calls::{Calls, apart, distance, returned};
use crate::error::adapters_fix;
use crate::http::{Trouble, excerpt};

/// Digits of a digest in a name.
const DIGITS: usize = 12;
/// Nearer than this, in noise of the server, two versions cannot be told apart by a few tokens.
const VISIBLE: f64 = 4.0;
/// Noise that f32 alone makes.
const LEAST_NOISE: f64 = 1e-5;

/// Which adapters the server has.
#[derive(Debug, Default)]
pub(crate) struct Adapters {
    loaded: Mutex<BTreeMap<String, Weak<Adapter>>>,
    /// One load at a time; requests with what is loaded do not wait for it.
    loading: tokio::sync::Mutex<()>,
}

/// Why a version is not served.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Unserved {
    pub(crate) reason: String,
    /// Whether it may well be served once the server is back.
    pub(crate) later: bool,
}

impl Unserved {
    fn for_good(reason: String) -> Self {
        Self {
            reason,
            later: false,
        }
    }

    fn because(trouble: &Trouble, calls: &Calls, what: &str) -> Self {
        let (url, kind) = (&calls.options.url, calls.options.kind);
        let fix = match trouble {
            Trouble::Refused { .. } => format!("; {}", adapters_fix(kind)),
            _ => String::new(),
        };
        Self {
            reason: format!("{what} at the server at {url} failed: {trouble}{fix}"),
            later: trouble.is_gone(),
        }
    }
}

/// The server's name of a version; none for the base model.
pub(crate) fn name(served: &Served) -> Option<String> {
    served.adapter()?;
    let digest: String = served.digest.chars().take(DIGITS).collect();
    Some(format!("clawhost-v{}-{digest}", served.version))
}

impl Adapters {
    fn known(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Weak<Adapter>>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server may have lost this one.
    pub(crate) fn forget(&self, name: &str) {
        self.known().remove(name);
    }

    /// Makes sure that the server has the adapter of a version; gives its name there.
    pub(crate) async fn ensure(
        &self,
        calls: &Calls,
        served: &Served,
    ) -> Result<Option<String>, Unserved> {
        let adapter = match &served.learned {
            None => return Ok(None),
            Some(Learned::Lora(adapter)) => adapter,
            Some(Learned::Full(_)) => {
                return Err(Unserved::for_good(
                    "a whole copy of the weights cannot be brought to a server that generates elsewhere; train with training.parameters = \"lora\", or leave [engine.remote] away".to_owned(),
                ));
            }
        };
        let Some(name) = name(served) else {
            return Ok(None);
        };
        if self.known().contains_key(&name) {
            return Ok(Some(name));
        }
        let _one = self.loading.lock().await;
        if !self.known().contains_key(&name) {
            self.load(calls, &name, adapter).await?;
        }
        Ok(Some(name))
    }

    async fn load(
        &self,
        calls: &Calls,
        name: &str,
        adapter: &Arc<Adapter>,
    ) -> Result<(), Unserved> {
        let dir = write(calls, name, adapter).await?;
        let body = json!({"lora_name": name, "lora_path": dir});
        let path = calls.options.kind.adapter_path(true);
        let key = "engine.remote.load_seconds";
        match calls.server.ask(path, &body, calls.options.load, key).await {
            Ok(said) => refused_politely(&said)
                .map_err(|trouble| Unserved::because(&trouble, calls, "loading an adapter"))?,
            // Whoever loaded it before meant the same bytes: the name says their digest.
            Err(Trouble::Refused { said, .. }) if said.contains("already") => {}
            Err(trouble) => {
                return Err(Unserved::because(&trouble, calls, "loading an adapter"));
            }
        }
        self.known()
            .insert(name.to_owned(), Arc::downgrade(adapter));
        Ok(())
    }

    /// Brings a version to the server and makes sure that it is what it serves.
    pub(crate) async fn release(
        &self,
        calls: &Calls,
        served: &Served,
        noise: f64,
    ) -> Result<(), Unserved> {
        let Some(name) = self.ensure(calls, served).await? else {
            return Ok(());
        };
        let confirmed = match confirm(calls, served, &name, noise).await {
            // It was there before the server was started anew.
            Err(Wrong::Trouble(trouble)) if trouble.may_lack_adapter() => {
                self.forget(&name);
                self.ensure(calls, served).await?;
                confirm(calls, served, &name, noise).await
            }
            other => other,
        };
        let Err(wrong) = confirmed else {
            return Ok(());
        };
        self.unload(calls, &name).await;
        Err(match wrong {
            Wrong::Trouble(trouble) => Unserved::because(&trouble, calls, "trying an adapter"),
            Wrong::Numbers(reason) => Unserved::for_good(reason),
        })
    }

    /// After the server was away: loads again what is still held here.
    pub(crate) async fn again(&self, calls: &Calls) -> Result<(), Unserved> {
        let held: Vec<(String, Weak<Adapter>)> =
            std::mem::take(&mut *self.known()).into_iter().collect();
        for (name, adapter) in held {
            if let Some(adapter) = adapter.upgrade() {
                let _one = self.loading.lock().await;
                let loaded = self.load(calls, &name, &adapter).await;
                if loaded.is_err() {
                    // So that the next try does not miss it.
                    self.known().insert(name, Arc::downgrade(&adapter));
                }
                loaded?;
            }
        }
        Ok(())
    }

    /// Unloads what nobody here holds any more.
    pub(crate) async fn sweep(&self, calls: &Calls) {
        let idle: Vec<String> = {
            let known = self.known();
            let idle = known.iter().filter(|(_, held)| held.strong_count() == 0);
            idle.map(|(name, _)| name.clone()).collect()
        };
        for name in idle {
            self.unload(calls, &name).await;
        }
    }

    async fn unload(&self, calls: &Calls, name: &str) {
        self.forget(name);
        let path = calls.options.kind.adapter_path(false);
        let body = json!({"lora_name": name});
        let key = "engine.remote.load_seconds";
        let limit = calls.options.load;
        if let Err(error) = calls.server.ask(path, &body, limit, key).await {
            tracing::warn!(name, %error, "an adapter was not unloaded; the server drops it when it needs the room");
        }
        if let Some(dir) = place(calls, name)
            && let Err(error) = tokio::fs::remove_dir_all(&dir).await
        {
            tracing::debug!(dir = %dir.display(), %error, "what an adapter was loaded from stays");
        }
    }
}

fn place(calls: &Calls, name: &str) -> Option<PathBuf> {
    calls.options.adapters.as_ref().map(|dir| dir.join(name))
}

/// Writes an adapter beside its place and moves it there.
async fn write(calls: &Calls, name: &str, adapter: &Arc<Adapter>) -> Result<PathBuf, Unserved> {
    let dir = place(calls, name).ok_or_else(|| {
        Unserved::for_good(
            "adapters need a directory that the server sees as well; name it in engine.remote.adapters"
                .to_owned(),
        )
    })?;
    let (adapter, base) = (Arc::clone(adapter), calls.options.model.clone());
    let place = dir.clone();
    let written = apart(move || {
        write_now(&place, &adapter, &base).map_err(|reason| Trouble::Garbled(reason.to_string()))
    });
    match written.await {
        Ok(()) => Ok(dir),
        Err(error) => Err(Unserved::for_good(format!(
            "the adapter could not be written to {}: {error}",
            dir.display()
        ))),
    }
}

fn write_now(
    place: &Path,
    adapter: &Adapter,
    base: &str,
) -> Result<(), Box<dyn std::error::Error>> {
    if place.is_dir() {
        return Ok(());
    }
    let beside = place.with_extension(format!("writing-{}", std::process::id()));
    let _left = std::fs::remove_dir_all(&beside);
    std::fs::create_dir_all(&beside)?;
    adapter.save_peft(&beside, base)?;
    std::fs::rename(&beside, place)?;
    Ok(())
}

/// SGLang says `success: false` in an answer; vLLM answers in words.
fn refused_politely(said: &str) -> Result<(), Trouble> {
    let value: Option<serde_json::Value> = serde_json::from_str(said).ok();
    let success = value
        .as_ref()
        .and_then(|value| value.get("success")?.as_bool());
    match success {
        Some(false) => Err(Trouble::Refused {
            status: 200,
            said: excerpt(said),
        }),
        _ => Ok(()),
    }
}

enum Wrong {
    Trouble(Trouble),
    Numbers(String),
}

impl From<Trouble> for Wrong {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

/// Whether the server's numbers under a name are those of the version, and not those of the base model. With r
/// returned, a of the version and b of the base, `Σ(r − b)(a − b) / Σ(a − b)²` is 1 for the version and 0 for the
/// base; it is looked at where the two differ by more than the server's noise.
async fn confirm(calls: &Calls, served: &Served, name: &str, noise: f64) -> Result<(), Wrong> {
    let sampled = calls.sample(Some(name), &Sampling::default()).await?;
    let said = returned(&sampled);
    let version = calls.own(served, &sampled).await?;
    let base = calls.own(&Served::base(&calls.model), &sampled).await?;
    let mean = distance(&version, &said);
    let (url, allowed) = (&calls.options.url, calls.options.agreement);
    if mean > allowed {
        return Err(Wrong::Numbers(format!(
            "the server at {url} does not serve what was loaded as {name}: log-probs of the same tokens differ by {mean:.3} on average, engine.remote.agreement allows {allowed}"
        )));
    }
    if distance(&version, &base) > VISIBLE * noise.max(LEAST_NOISE) {
        let (mut along, mut square) = (0.0, 0.0);
        for ((r, a), b) in said.iter().zip(&version).zip(&base) {
            let step = f64::from(*a) - f64::from(*b);
            along += (f64::from(*r) - f64::from(*b)) * step;
            square += step * step;
        }
        let share = along / square;
        if share < 0.5 {
            return Err(Wrong::Numbers(format!(
                "the server at {url} answers to {name} with the base model ({share:.2} of the adapter's effect is there); {}",
                adapters_fix(calls.options.kind)
            )));
        }
    }
    Ok(())
}
