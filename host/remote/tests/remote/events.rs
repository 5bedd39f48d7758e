//! The events of a reply, as vLLM and SGLang write them.

use std::collections::BTreeMap;

use bytes::Bytes;
use clawhost_engine::{FinishReason, SampledToken};
use clawhost_remote::ServerKind;
use serde_json::{Value, json};

use crate::server::{Fault, ReturnedLogprobs};

/// Writes the events of one reply.
pub(crate) struct EventWriter {
    form: ServerKind,
    returns: ReturnedLogprobs,
    fault: Fault,
    tokens: Vec<TokenEntry>,
}

/// Log-prob, id and alternatives.
type TokenEntry = (f32, u32, Vec<(u32, f32)>);

impl EventWriter {
    pub(crate) fn new(form: ServerKind, returns: ReturnedLogprobs, fault: Fault) -> Self {
        Self {
            form,
            returns,
            fault,
            tokens: Vec::new(),
        }
    }

    /// Number of tokens so far.
    pub(crate) fn count(&self) -> usize {
        self.tokens.len()
    }

    pub(crate) fn event(&mut self, token: SampledToken, finish: Option<FinishReason>) -> Bytes {
        let value = match self.returns {
            ReturnedLogprobs::Raw => token.model_logprob,
            ReturnedLogprobs::TemperatureScaled => token.full_logprob,
            ReturnedLogprobs::Processed => token.logprob,
        };
        self.tokens.push((value, token.id, token.top));
        let event = match self.form {
            ServerKind::Vllm => self.vllm(finish),
            ServerKind::Sglang => self.sglang(finish),
        };
        format!("data: {event}\n\n").into()
    }

    fn vllm(&self, finish: Option<FinishReason>) -> Value {
        let (value, id, top) = self.tokens.last().unwrap();
        let mut alternatives: BTreeMap<String, f32> = top
            .iter()
            .map(|(id, lp)| (format!("token_id:{id}"), *lp))
            .collect();
        // Like vLLM: the sampled token is always included.
        alternatives.insert(format!("token_id:{id}"), *value);
        let mut choice = json!({
            "index": 0, "text": "…", "stop_reason": null,
            "finish_reason": finish.map(|reason| match reason {
                FinishReason::Stop => "stop",
                FinishReason::Length => "length",
            }),
            "prompt_token_ids": null, "token_ids": [id],
            "logprobs": {
                "text_offset": [0], "tokens": [format!("token_id:{id}")],
                "token_logprobs": [value], "top_logprobs": [alternatives],
            },
        });
        match self.fault {
            Fault::NoIds => choice["token_ids"] = Value::Null,
            Fault::NoLogprobs => choice["logprobs"] = Value::Null,
            _ => {}
        }
        json!({"id": "cmpl-0", "object": "text_completion", "created": 0, "model": "m",
               "choices": [choice], "usage": null})
    }

    fn sglang(&self, finish: Option<FinishReason>) -> Value {
        let all = self.tokens.iter();
        let listed: Vec<Value> = all
            .clone()
            .map(|(lp, id, _)| json!([lp, id, null]))
            .collect();
        let tops: Vec<Value> = all
            .map(|(_, _, top)| top.iter().map(|(id, lp)| json!([lp, id, null])).collect())
            .collect();
        let count = self.tokens.len();
        let mut meta = json!({
            "id": "0", "prompt_tokens": 1, "completion_tokens": count, "cached_tokens": 3,
            "finish_reason": finish.map(|reason| match reason {
                FinishReason::Stop => json!({"type": "stop", "matched": 0}),
                FinishReason::Length => json!({"type": "length", "length": count}),
            }),
            "output_token_logprobs": listed, "output_top_logprobs": tops,
        });
        if self.fault == Fault::NoLogprobs {
            meta.as_object_mut()
                .unwrap()
                .remove("output_token_logprobs");
        }
        json!({"text": "…", "output_ids": [], "meta_info": meta})
    }
}
