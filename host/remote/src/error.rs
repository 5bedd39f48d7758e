//! Why a server cannot be used, with what would mend it.

use crate::options::Kind;

/// Why a server is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RemoteError {
    /// The address cannot be used.
    #[error("engine.remote.url = {url:?}: {problem}")]
    Address {
        /// As configured.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// It cannot be reached, or what it says is no answer.
    #[error("the server at {url} cannot be used: {reason}")]
    Trouble {
        /// Its address.
        url: String,
        /// What happened.
        reason: String,
    },
    /// It returns no token ids.
    #[error(
        "the server at {url} returns no token ids, so nothing could be recorded or trained; {}",
        ids_fix(*.kind)
    )]
    NoIds {
        /// Its address.
        url: String,
        /// Whose form it was asked in.
        kind: Kind,
    },
    /// It returns no log-probs.
    #[error(
        "the server at {url} returns no log-probs of the tokens it sampled, so nothing could be trained; {}",
        logprobs_fix(*.kind)
    )]
    NoLogprobs {
        /// Its address.
        url: String,
        /// Whose form it was asked in.
        kind: Kind,
    },
    /// Its log-probs are not those of the weights here.
    #[error(
        "the server at {url} does not serve the model that is loaded here: log-probs of the same {tokens} tokens differ by {mean:.3} on average, engine.remote.agreement allows {allowed}; start it with the directory of [model] dir, in a precision that is close enough"
    )]
    OtherWeights {
        /// Its address.
        url: String,
        /// Tokens that were compared.
        tokens: usize,
        /// Mean |difference| in nats.
        mean: f64,
        /// What is allowed.
        allowed: f64,
    },
    /// What its log-probs mean cannot be told.
    #[error(
        "what the log-probs of the server at {url} mean cannot be told: at temperature 0.7 with top_k 8 they differ by {model:.3} from the model's own, by {tempered:.3} from those at the temperature and by {drawn:.3} from those as drawn; {}",
        logprobs_fix(*.kind)
    )]
    Meaning {
        /// Its address.
        url: String,
        /// Whose form it was asked in.
        kind: Kind,
        /// Mean |difference| to the softmax at temperature 1.
        model: f64,
        /// Mean |difference| to the softmax at the temperature.
        tempered: f64,
        /// Mean |difference| to what it was drawn from.
        drawn: f64,
    },
    /// Adapters cannot be served.
    #[error("the server at {url} serves no adapters: {reason}; {}", adapters_fix(*.kind))]
    NoAdapters {
        /// Its address.
        url: String,
        /// Whose form it was asked in.
        kind: Kind,
        /// What it said.
        reason: String,
    },
}

fn ids_fix(kind: Kind) -> &'static str {
    match kind {
        Kind::Vllm => "return_token_ids needs vLLM 0.10.2 or later",
        Kind::Sglang => {
            "start SGLang 0.4.9 or later without --skip-tokenizer-init's text-only proxies"
        }
    }
}

fn logprobs_fix(kind: Kind) -> &'static str {
    match kind {
        Kind::Vllm => {
            "start vLLM with --logprobs-mode raw_logprobs or processed_logprobs and --max-logprobs 20"
        }
        Kind::Sglang => {
            "leave SGLANG_RETURN_ORIGINAL_LOGPROB away, and no speculative decoding that drops log-probs"
        }
    }
}

pub(crate) fn adapters_fix(kind: Kind) -> &'static str {
    match kind {
        Kind::Vllm => {
            "start vLLM with --enable-lora --max-lora-rank of at least training.lora.rank and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, and let it see engine.remote.adapters under the same path"
        }
        Kind::Sglang => {
            "start SGLang with --enable-lora --max-lora-rank of at least training.lora.rank --lora-target-modules all, and let it see engine.remote.adapters under the same path"
        }
    }
}
