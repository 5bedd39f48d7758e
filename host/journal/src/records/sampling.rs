//! The effective sampling parameters of a turn.

use clawhost_chat::SamplingParams;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// How the replies to a request were sampled. Every field has a default, because earlier versions recorded fewer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplingRecord {
    /// The parameters as requested, over the defaults of the model.
    #[serde(flatten)]
    pub params: SamplingParams,
    /// Number of requested choices. Default 1.
    pub n: u32,
    /// The seeds that were used, in order of the choices.
    pub seeds: Vec<u64>,
    /// Fields of the request that its dialect repeats when the response is retrieved. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<Map<String, Value>>,
}

impl From<SamplingParams> for SamplingRecord {
    fn from(params: SamplingParams) -> Self {
        Self {
            params,
            n: 1,
            seeds: Vec::new(),
            response: None,
        }
    }
}

impl Default for SamplingRecord {
    fn default() -> Self {
        SamplingParams::default().into()
    }
}

#[cfg(test)]
mod tests {
    use clawhost_chat::Constraint;
    use serde_json::json;

    use super::*;

    #[test]
    fn every_parameter_reads_back() {
        let record = SamplingRecord {
            n: 2,
            seeds: vec![u64::MAX, 0],
            response: Some(Map::from_iter([("store".to_owned(), json!(false))])),
            ..SamplingParams {
                temperature: 0.7,
                top_p: 0.1,
                seed: Some(u64::MAX),
                stop: vec!["x".to_owned()],
                logit_bias: [(7, -3.5), (u32::MAX, 0.1)].into(),
                stop_token_ids: vec![9],
                constraint: Some(Constraint::json_object()),
                ..SamplingParams::default()
            }
            .into()
        };
        let written = serde_json::to_value(&record).unwrap();
        assert_eq!(written["seeds"], json!([u64::MAX, 0]));
        assert_eq!(written["temperature"], json!(0.7_f32));
        let text = written.to_string();
        assert_eq!(
            serde_json::from_str::<SamplingRecord>(&text).unwrap(),
            record
        );
    }

    #[test]
    fn records_of_other_versions_read() {
        let old =
            r#"{"temperature": 0.5, "max_tokens": 80, "seed": null, "of_the_future": {"a": 1}}"#;
        let record: SamplingRecord = serde_json::from_str(old).unwrap();
        assert_eq!(
            (record.params.temperature, record.params.max_tokens),
            (0.5, 80)
        );
        assert_eq!((record.params.top_p, record.n), (1.0, 1));
        let wrong = r#"{"logit_bias": {"seven": 1.0}}"#;
        assert!(serde_json::from_str::<SamplingRecord>(wrong).is_err());
    }
}
