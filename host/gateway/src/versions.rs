//! Resolves the adapter version of a request: the active one, or one that the client names.
//!
//! A [`LoadedVersion`] keeps its adapter (or its full copy of the weights) in memory, so only the last few versions are
//! kept; the base model is always available.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use clawhost_engine::{Engine, LoadedVersion};
use clawhost_model::TrainedWeights;

use crate::error::ApiError;
use crate::options::{GatewayOptions, MAX_FULL_COPIES};

/// Hex digits of a digest in `x-clawhost-adapter`.
const DIGEST_PREFIX_LENGTH: usize = 12;

/// The loaded adapter versions, newest last.
pub(crate) struct Versions {
    loaded_versions: Mutex<VecDeque<LoadedVersion>>,
    capacity: usize,
}

impl Versions {
    /// Keeps up to `capacity` versions besides the active one.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            loaded_versions: Mutex::new(VecDeque::new()),
            capacity,
        }
    }

    /// The active version; adds it to the loaded versions.
    pub(crate) fn active(&self, engine: &Engine) -> LoadedVersion {
        let active = engine.active();
        let mut loaded_versions = self
            .loaded_versions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if loaded_versions
            .iter()
            .all(|loaded| loaded.version != active.version)
        {
            loaded_versions.push_back(active.clone());
            while loaded_versions.len() > self.capacity.saturating_add(1) {
                loaded_versions.pop_front();
            }
            while loaded_versions
                .iter()
                .filter(|loaded| has_full_weights(loaded))
                .count()
                > MAX_FULL_COPIES
            {
                let oldest = loaded_versions
                    .iter()
                    .position(has_full_weights)
                    .expect("more than one has them");
                loaded_versions.remove(oldest);
            }
        }
        active
    }

    /// All versions that a request can name, in ascending order, the base model first.
    pub(crate) fn all(&self, engine: &Engine) -> Vec<LoadedVersion> {
        self.active(engine);
        let loaded_versions = self
            .loaded_versions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<LoadedVersion> = loaded_versions.iter().cloned().collect();
        if all.iter().all(|loaded| loaded.version != 0) {
            all.push(LoadedVersion::base(engine.model()));
        }
        all.sort_by_key(|loaded| loaded.version);
        all
    }

    /// Resolves the `model` field of a request to a version and the model name of the response. Without a version in
    /// `model`, the version of the API key (`key_version`), else that of the owner, or else the active version is used.
    /// `own` loads the version of the request's owner, `None` for the shared adapter. A version of another owner is not
    /// found.
    pub(crate) fn resolve(
        &self,
        engine: &Engine,
        options: &GatewayOptions,
        model: Option<&str>,
        key_version: Option<u64>,
        own: impl Fn() -> Result<Option<LoadedVersion>, ApiError>,
    ) -> Result<(LoadedVersion, String), ApiError> {
        let name = &options.model_name;
        let requested = model.unwrap_or("").trim();
        let find = |version: u64| -> Result<Option<LoadedVersion>, ApiError> {
            let shared = self
                .all(engine)
                .into_iter()
                .find(|served| served.version == version);
            match shared {
                Some(served) => Ok(Some(served)),
                None => Ok(own()?.filter(|served| served.version == version)),
            }
        };
        let default_version = || -> Result<(LoadedVersion, String), ApiError> {
            let Some(version) = key_version else {
                let own = own()?;
                return Ok((own.unwrap_or_else(|| self.active(engine)), name.clone()));
            };
            let found = find(version)?;
            let found = found.map(|served| (served, name.clone()));
            found.ok_or_else(|| {
                ApiError::unavailable(
                    "adapter_not_held",
                    format!(
                        "this key uses adapter {version}, which is not loaded; request a version that \
                         `/v1/models` lists, as `{name}:VERSION`"
                    ),
                )
            })
        };
        if requested.is_empty()
            || requested == name
            || options
                .server
                .model_aliases
                .iter()
                .any(|alias| alias == requested)
        {
            return default_version();
        }
        let version = requested
            .strip_prefix(name.as_str())
            .and_then(|rest| rest.strip_prefix(':'));
        if let Some(version) = version {
            let wanted = match version {
                "base" => Some(0),
                version => version.parse::<u64>().ok(),
            };
            let found = wanted.map(find).transpose()?;
            if let Some(served) = found.flatten() {
                return Ok((served, requested.to_owned()));
            }
        } else if options
            .server
            .model_aliases
            .iter()
            .any(|alias| alias == "*")
        {
            return default_version();
        }
        let shown: String = requested.chars().take(120).collect();
        Err(ApiError::not_found(
            "model_not_found",
            format!(
                "the model `{shown}` does not exist; use `{name}`, or `{name}:VERSION` for a version \
                 that `/v1/models` lists"
            ),
        )
        .param("model"))
    }
}

fn has_full_weights(served: &LoadedVersion) -> bool {
    matches!(served.weights, Some(TrainedWeights::Full(_)))
}

/// `version:digest-prefix`, as in the header `x-clawhost-adapter`.
pub(crate) fn label(served: &LoadedVersion) -> String {
    let digest: String = served.digest().chars().take(DIGEST_PREFIX_LENGTH).collect();
    format!("{}:{digest}", served.version)
}
