//! Which adapter version serves a request: the active one, or one that the client names.
//!
//! Holding a [`Served`] keeps its adapter (or its whole copy of the weights) in memory, so only the last few versions that were seen are
//! held; the base model is always there.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use clawhost_policy::{Engine, Learned, Served};

use crate::error::ApiError;
use crate::options::GatewayOptions;

/// Digits of a digest that a person needs to tell two apart.
const SHOWN_DIGEST: usize = 12;

/// Whole copies of the weights that are held, the active one among them: each is as large as the base.
const COPIES: usize = 2;

/// The last versions, newest last.
pub(crate) struct Versions {
    held: Mutex<VecDeque<Served>>,
    keep: usize,
}

impl Versions {
    /// Holds `keep` versions beside the active one.
    pub(crate) fn new(keep: usize) -> Self {
        Self {
            held: Mutex::new(VecDeque::new()),
            keep,
        }
    }

    /// The active version, which is remembered.
    pub(crate) fn active(&self, engine: &Engine) -> Served {
        let active = engine.active();
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.iter().all(|one| one.version != active.version) {
            held.push_back(active.clone());
            while held.len() > self.keep.saturating_add(1) {
                held.pop_front();
            }
            while held.iter().filter(|one| is_copy(one)).count() > COPIES {
                let oldest = held.iter().position(is_copy).unwrap_or(0);
                held.remove(oldest);
            }
        }
        active
    }

    /// All versions that a request can name, ascending, the base model first.
    pub(crate) fn all(&self, engine: &Engine) -> Vec<Served> {
        self.active(engine);
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<Served> = held.iter().cloned().collect();
        if all.iter().all(|one| one.version != 0) {
            all.push(Served::base(engine.model()));
        }
        all.sort_by_key(|one| one.version);
        all
    }

    /// The version that a request asks for by its `model`, and the name under which it is answered. A request that
    /// names no version gets that of its key (`of_key`), or the active one.
    pub(crate) fn resolve(
        &self,
        engine: &Engine,
        options: &GatewayOptions,
        model: Option<&str>,
        of_key: Option<u64>,
    ) -> Result<(Served, String), ApiError> {
        let name = &options.model_name;
        let asked = model.unwrap_or("").trim();
        let unversioned = || -> Result<(Served, String), ApiError> {
            let Some(version) = of_key else {
                return Ok((self.active(engine), name.clone()));
            };
            let found = self
                .all(engine)
                .into_iter()
                .find(|served| served.version == version);
            let found = found.map(|served| (served, name.clone()));
            found.ok_or_else(|| {
                ApiError::unavailable(
                    "adapter_not_held",
                    format!(
                        "this key is for adapter {version}, which is not in memory; name a version that \
                         `/v1/models` lists, as `{name}:VERSION`"
                    ),
                )
            })
        };
        if asked.is_empty() || asked == name || options.aliases.iter().any(|alias| alias == asked) {
            return unversioned();
        }
        let version = asked
            .strip_prefix(name.as_str())
            .and_then(|rest| rest.strip_prefix(':'));
        if let Some(version) = version {
            let wanted = match version {
                "base" => Some(0),
                version => version.parse::<u64>().ok(),
            };
            let found = wanted.and_then(|wanted| {
                self.all(engine)
                    .into_iter()
                    .find(|served| served.version == wanted)
            });
            if let Some(served) = found {
                return Ok((served, asked.to_owned()));
            }
        } else if options.aliases.iter().any(|alias| alias == "*") {
            return unversioned();
        }
        let shown: String = asked.chars().take(120).collect();
        Err(ApiError::not_found(
            "model_not_found",
            format!(
                "the model `{shown}` is not served here; use `{name}`, or `{name}:VERSION` for a version \
                 that `/v1/models` lists"
            ),
        )
        .param("model"))
    }
}

fn is_copy(served: &Served) -> bool {
    matches!(served.learned, Some(Learned::Full(_)))
}

/// `version:digest-prefix`, as in the header `x-clawhost-adapter`.
pub(crate) fn label(served: &Served) -> String {
    let digest: String = served.digest.chars().take(SHOWN_DIGEST).collect();
    format!("{}:{digest}", served.version)
}
