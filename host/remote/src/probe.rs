//! What a server is asked before anything is served from it: a few tokens at temperature 1 and at 0.7.
//!
//! At temperature 1 all log-probs are the same, so their distance from what the weights here find of the same tokens
//! says whether it serves that model. At 0.7 with eight tokens kept they are three different numbers, and the one that
//! it returns is the nearest; it has to be twice as near as the next, else nothing is concluded.

use std::sync::Arc;

use clawhost_policy::{Sampling, Served};

use crate::calls::{Calls, apart, distance, returned};
use crate::error::RemoteError;
use crate::http::Trouble;
use crate::meaning::Reports;
use crate::rescoring;

/// How often the right meaning is nearer than the next.
const CLEARLY: f64 = 2.0;

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Found {
    pub(crate) reports: Reports,
    /// Mean |difference| in nats of the same tokens' log-probs there and here.
    pub(crate) noise: f64,
}

/// Asks for everything.
pub(crate) async fn probe(calls: &Calls) -> Result<Found, RemoteError> {
    let noise = same_weights(calls).await?;
    let reports = meaning(calls).await?;
    Ok(Found { reports, noise })
}

/// Whether it serves the weights that are loaded here; gives their mean distance.
pub(crate) async fn same_weights(calls: &Calls) -> Result<f64, RemoteError> {
    let failed = |trouble: Trouble| trouble.at_start(&calls.options);
    let sampled = calls.sample(None, &Sampling::default()).await;
    let sampled = sampled.map_err(failed)?;
    let base = Served::base(&calls.model);
    let own = calls.own(&base, &sampled).await.map_err(failed)?;
    let mean = distance(&own, &returned(&sampled));
    let allowed = calls.options.agreement;
    if mean <= allowed {
        Ok(mean)
    } else {
        Err(RemoteError::OtherWeights {
            url: calls.options.url.clone(),
            tokens: own.len(),
            mean,
            allowed,
        })
    }
}

async fn meaning(calls: &Calls) -> Result<Reports, RemoteError> {
    let failed = |trouble: Trouble| trouble.at_start(&calls.options);
    let sampling = Sampling {
        temperature: 0.7,
        top_k: 8,
        ..Sampling::default()
    };
    let sampled = calls.sample(None, &sampling).await.map_err(failed)?;
    let base = Served::base(&calls.model);
    let model = calls.own(&base, &sampled).await.map_err(failed)?;
    let said = returned(&sampled);
    let (weights, prompt) = (Arc::clone(&calls.model), calls.prompt.clone());
    let (drawn, tempered) = apart(move || {
        let (mut drawn, mut tempered) = (Vec::new(), Vec::new());
        for one in &sampled {
            let found = rescoring::rescore(&weights, &base, &prompt, &one.ids, &sampling)
                .map_err(|error| Trouble::Garbled(error.to_string()))?;
            drawn.extend(found.drawn);
            tempered.extend(found.full);
        }
        Ok((drawn, tempered))
    })
    .await
    .map_err(failed)?;
    let mut distances = [
        (distance(&model, &said), Reports::Model),
        (distance(&tempered, &said), Reports::Tempered),
        (distance(&drawn, &said), Reports::Drawn),
    ];
    let [(model, _), (tempered, _), (drawn, _)] = distances;
    distances.sort_by(|a, b| a.0.total_cmp(&b.0));
    let [(best, reports), (next, _), _] = distances;
    if best <= calls.options.agreement && next >= best * CLEARLY {
        return Ok(reports);
    }
    Err(RemoteError::Meaning {
        url: calls.options.url.clone(),
        kind: calls.options.kind,
        model,
        tempered,
        drawn,
    })
}
