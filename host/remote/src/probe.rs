//! Probes a server before it is used, with a few tokens at temperature 1 and at 0.7.
//!
//! At temperature 1 all log-prob definitions agree, so the difference from the local model's log-probs of the same
//! tokens shows whether the server has the same weights. At 0.7 with top_k 8 the three definitions give different
//! values, and the closest one is what the server returns; it must be twice as close as the next, otherwise the probe
//! fails.

use std::sync::Arc;

use clawhost_engine::{LoadedVersion, SamplingParams};

use crate::client::{RemoteClient, mean_difference, run_blocking, server_logprobs};
use crate::error::RemoteError;
use crate::http::CallError;
use crate::logprobs_mode::LogprobsMode;
use crate::rescoring;

/// Minimum ratio of the second-best difference to the best one.
const MIN_RATIO: f64 = 2.0;

/// The result of the probe.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ProbeResult {
    pub(crate) logprobs_mode: LogprobsMode,
    /// Mean |difference| in nats between the server's and the local log-probs of the same tokens.
    pub(crate) logprob_noise: f64,
}

/// Runs all probes.
pub(crate) async fn probe(client: &RemoteClient) -> Result<ProbeResult, RemoteError> {
    let logprob_noise = check_weights(client).await?;
    let logprobs_mode = detect_logprobs_mode(client).await?;
    Ok(ProbeResult {
        logprobs_mode,
        logprob_noise,
    })
}

/// Checks that the server has the weights that are loaded here. Returns the mean difference of the log-probs.
pub(crate) async fn check_weights(client: &RemoteClient) -> Result<f64, RemoteError> {
    let failed = |error: CallError| error.into_remote_error(&client.options);
    let sampled = client
        .sample_replies(None, &SamplingParams::default())
        .await;
    let sampled = sampled.map_err(failed)?;
    let base = LoadedVersion::base(client.backend.model());
    let own = client
        .score_locally(&base, &sampled)
        .await
        .map_err(failed)?;
    let mean = mean_difference(&own, &server_logprobs(&sampled));
    let allowed = client.options.max_logprob_difference;
    if mean <= allowed {
        Ok(mean)
    } else {
        Err(RemoteError::WeightsMismatch {
            url: client.options.url.clone(),
            tokens: own.len(),
            mean,
            allowed,
        })
    }
}

async fn detect_logprobs_mode(client: &RemoteClient) -> Result<LogprobsMode, RemoteError> {
    let failed = |error: CallError| error.into_remote_error(&client.options);
    let sampling = SamplingParams {
        temperature: 0.7,
        top_k: 8,
        ..SamplingParams::default()
    };
    let sampled = client
        .sample_replies(None, &sampling)
        .await
        .map_err(failed)?;
    let base = LoadedVersion::base(client.backend.model());
    let raw = client
        .score_locally(&base, &sampled)
        .await
        .map_err(failed)?;
    let returned = server_logprobs(&sampled);
    let (backend, prompt) = (Arc::clone(&client.backend), client.prompt.clone());
    let (processed, temperature_scaled) = run_blocking(move || {
        let (mut processed, mut temperature_scaled) = (Vec::new(), Vec::new());
        for one in &sampled {
            let scores = rescoring::rescore(&*backend, &base, &prompt, &one.ids, &sampling)
                .map_err(|error| CallError::Malformed(error.to_string()))?;
            processed.extend(scores.processed);
            temperature_scaled.extend(scores.full);
        }
        Ok((processed, temperature_scaled))
    })
    .await
    .map_err(failed)?;
    let mut distances = [
        (mean_difference(&raw, &returned), LogprobsMode::Raw),
        (
            mean_difference(&temperature_scaled, &returned),
            LogprobsMode::TemperatureScaled,
        ),
        (
            mean_difference(&processed, &returned),
            LogprobsMode::Processed,
        ),
    ];
    let [(raw, _), (temperature_scaled, _), (processed, _)] = distances;
    distances.sort_by(|a, b| a.0.total_cmp(&b.0));
    let [(best, logprobs_mode), (next, _), _] = distances;
    if best <= client.options.max_logprob_difference && next >= best * MIN_RATIO {
        return Ok(logprobs_mode);
    }
    Err(RemoteError::UnknownLogprobsMode {
        url: client.options.url.clone(),
        kind: client.options.backend,
        raw,
        temperature_scaled,
        processed,
    })
}
