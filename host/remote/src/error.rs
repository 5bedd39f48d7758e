//! Errors of connecting to a server, each with a fix.

use clawhost_config::ServerKind;

/// Why a server cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RemoteError {
    /// The URL is invalid.
    #[error("engine.remote.url = {url:?}: {problem}")]
    InvalidUrl {
        /// The configured URL.
        url: String,
        /// The problem.
        problem: String,
    },
    /// It cannot be reached, or its responses are malformed.
    #[error("the server at {url} cannot be used: {reason}")]
    Unusable {
        /// Its URL.
        url: String,
        /// The reason.
        reason: String,
    },
    /// It returns no token ids.
    #[error(
        "the server at {url} returns no token ids, so nothing could be recorded or trained; {}",
        ids_fix(*.kind)
    )]
    NoIds {
        /// Its URL.
        url: String,
        /// Its configured kind.
        kind: ServerKind,
    },
    /// It returns no log-probs.
    #[error(
        "the server at {url} returns no log-probs of the tokens it sampled, so nothing could be trained; {}",
        logprobs_fix(*.kind)
    )]
    NoLogprobs {
        /// Its URL.
        url: String,
        /// Its configured kind.
        kind: ServerKind,
    },
    /// Its log-probs differ from those of the local weights.
    #[error(
        "the server at {url} has other weights than the model loaded here: log-probs of the same {tokens} tokens differ by {mean:.3} on average, engine.remote.max_logprob_difference allows {allowed}; start it with the directory of [model] dir, in a sufficient precision"
    )]
    WeightsMismatch {
        /// Its URL.
        url: String,
        /// Tokens that were compared.
        tokens: usize,
        /// Mean |difference| in nats.
        mean: f64,
        /// The configured maximum.
        allowed: f64,
    },
    /// How it computes log-probs cannot be determined.
    #[error(
        "cannot determine how the server at {url} computes log-probs: at temperature 0.7 with top_k 8 they differ by {raw:.3} from raw log-probs, by {temperature_scaled:.3} from temperature-scaled ones and by {processed:.3} from processed ones; {}",
        logprobs_fix(*.kind)
    )]
    UnknownLogprobsMode {
        /// Its URL.
        url: String,
        /// Its configured kind.
        kind: ServerKind,
        /// Mean |difference| from the softmax at temperature 1.
        raw: f64,
        /// Mean |difference| from the full softmax at the temperature.
        temperature_scaled: f64,
        /// Mean |difference| from the distribution the token was sampled from.
        processed: f64,
    },
    /// Adapters cannot be served.
    #[error("the server at {url} cannot serve adapters: {reason}; {}", adapters_fix(*.kind))]
    NoAdapters {
        /// Its URL.
        url: String,
        /// Its configured kind.
        kind: ServerKind,
        /// The reason.
        reason: String,
    },
}

fn ids_fix(kind: ServerKind) -> &'static str {
    match kind {
        ServerKind::Vllm => "return_token_ids needs vLLM 0.10.2 or later",
        ServerKind::Sglang => {
            "start SGLang 0.4.9 or later without --skip-tokenizer-init's text-only proxies"
        }
    }
}

fn logprobs_fix(kind: ServerKind) -> &'static str {
    match kind {
        ServerKind::Vllm => {
            "start vLLM with --logprobs-mode raw_logprobs or processed_logprobs and --max-logprobs 20"
        }
        ServerKind::Sglang => {
            "unset SGLANG_RETURN_ORIGINAL_LOGPROB, and disable speculative decoding that drops log-probs"
        }
    }
}

pub(crate) fn adapters_fix(kind: ServerKind) -> &'static str {
    match kind {
        ServerKind::Vllm => {
            "start vLLM with --enable-lora --max-lora-rank of at least training.lora.rank and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, and give it access to engine.remote.adapter_dir under the same path"
        }
        ServerKind::Sglang => {
            "start SGLang with --enable-lora --max-lora-rank of at least training.lora.rank --lora-target-modules all, and give it access to engine.remote.adapter_dir under the same path"
        }
    }
}
