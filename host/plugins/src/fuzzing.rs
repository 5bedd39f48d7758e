//! The properties that the fuzz targets in `fuzz/` check.
//!
//! Each function builds attacker-controlled input from arbitrary bytes and panics if the host accepts something that it
//! must reject. `cargo test` runs the same functions for about a second.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use clawhost_config::{Limits, PluginHostConfig, Profile, VerdictRules};
use tokio::runtime::Runtime;

use crate::bindings::{advantage, loss};
use crate::call::{CallContext, TICK};
use crate::capability::http::policy;
use crate::capability::http::redact::Redactor;
use crate::conversation::Trajectory;
use crate::grants::{GrantFile, Grants, Manifest};
use crate::host::PluginHost;
use crate::options::HostOptions;
use crate::verdict::{CheckResult, Metric, Verdict, Vote};
use crate::worlds;

/// Any component file is rejected, or it loads and its calls end.
pub fn loading(bytes: &[u8]) {
    static HOST: OnceLock<Option<(PluginHost, Runtime)>> = OnceLock::new();
    let host = HOST.get_or_init(|| {
        let options = HostOptions {
            config: PluginHostConfig {
                num_threads: 1,
                max_instances: 2,
                ..PluginHostConfig::default()
            },
            ..HostOptions::default()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().ok()?;
        Some((PluginHost::new(options).ok()?, runtime))
    });
    let Some((host, runtime)) = host else { return };
    let loaded = host.load("any", bytes, &Grants::default(), Profile::Deterministic);
    let Ok(plugin) = loaded else { return };
    let call = CallContext {
        limits: Limits {
            fuel: 10_000_000,
            cpu_time: 20 * TICK,
            wall_time: Duration::from_secs(2),
            ..Limits::default()
        },
        ..CallContext::default()
    };
    let judged = runtime.block_on(plugin.score_turn(call, &Trajectory::new("any", "any"), 0));
    if let Ok(verdict) = judged.outcome {
        assert_valid(&verdict);
    }
}

/// Any accepted result is finite, in range, of the right length and bounded.
pub fn results(bytes: &[u8]) {
    let mut source = Source(bytes);
    let verdict = Verdict {
        reward: source.float(),
        accept: source.byte() & 1 == 1,
        votes: (0..source.byte() % 8)
            .map(|_| Vote {
                score: source.float(),
                rationale: source.text(),
            })
            .collect(),
        rationale: source.text(),
        metrics: source.metrics(),
    };
    if VerdictRules::default().check(&verdict).is_ok() {
        assert_valid(&verdict);
    }

    let mask: Vec<u8> = (0..source.byte() % 8).map(|_| source.byte() & 1).collect();
    let needs = worlds::loss::Requirements {
        logprob: true,
        topk: source.byte() & 1 == 1,
        entropy: source.byte() & 1 == 1,
        k: 2,
        ..worlds::loss::Requirements::default()
    };
    let gradient = loss::Gradient {
        loss: f64::from(source.float()),
        d_logprob: source.floats(mask.len()),
        d_topk: source.floats(if needs.topk { 2 * mask.len() } else { 0 }),
        d_entropy: source.floats(if needs.entropy { mask.len() } else { 0 }),
        metrics: Vec::new(),
    };
    let rules = VerdictRules::default();
    if let Ok(accepted) = worlds::loss::check_gradient(gradient, needs, &mask, &rules) {
        assert!(accepted.loss.is_finite());
        assert_eq!(accepted.d_logprob.len(), mask.len());
        let all = [&accepted.d_logprob, &accepted.d_topk, &accepted.d_entropy];
        assert!(all.into_iter().flatten().all(|partial| partial.is_finite()));
        let positions = mask.iter().zip(&accepted.d_logprob);
        assert!(
            positions
                .into_iter()
                .all(|(trained, partial)| *trained != 0 || *partial == 0.0)
        );
    }

    let (sequences, tokens) = (usize::from(source.byte() % 8), 16);
    let estimate = advantage::Estimate {
        per_token: source.byte() & 1 == 1,
        values: source.floats(sequences),
        metrics: Vec::new(),
    };
    let rules = VerdictRules::default();
    if let Ok(accepted) = worlds::advantage::check_estimate(estimate, sequences, tokens, &rules) {
        let (values, expected) = match accepted.advantages {
            worlds::advantage::Advantages::PerSequence(values) => (values, sequences),
            worlds::advantage::Advantages::PerToken(values) => (values, tokens),
        };
        assert_eq!(values.len(), expected);
        assert!(values.iter().all(|value| value.is_finite()));
    }
}

/// Any admitted HTTP request goes to a granted origin and contains a secret only in its header for its origin.
pub fn url_policy(bytes: &[u8]) {
    const SECRET: &str = "s3cret-of-the-host";
    if String::from_utf8_lossy(bytes).contains(SECRET) {
        // The attacker does not know the secret.
        return;
    }
    let mut grants = Grants::default();
    for argument in [
        "http=https://api.example",
        "http=http://127.0.0.1:9000",
        "secret=KEY:API_KEY@https://api.example",
    ] {
        // Constant valid arguments.
        let _ = grants.add(argument);
    }
    let mut source = Source(bytes);
    let (method, url) = (source.text(), source.text());
    let headers: Vec<_> = (0..source.byte() % 4)
        .map(|_| (source.text(), source.text()))
        .collect();
    let body = source.text();
    for method in [method.as_str(), "POST"] {
        let reveal = |_: &str| Some(SECRET.to_owned());
        let Ok(admitted) = policy::admit(&grants, method, &url, &headers, body.as_bytes(), reveal)
        else {
            continue;
        };
        assert!(grants.origins.contains(&admitted.origin), "{url:?}");
        let host = admitted.url.host_str().expect("admitted URLs have a host");
        assert!(
            host == "api.example" || host == "127.0.0.1",
            "{url:?} leads to {host}"
        );
        for (name, value) in &admitted.headers {
            assert!(!name.contains(['\r', '\n', ':', ' ']) && !value.contains(['\r', '\n', '\0']));
            assert!(!value.contains(SECRET) || host == "api.example");
        }
        assert!(!admitted.url.as_str().contains(SECRET));
        let echo = Redactor::new(&admitted.secrets)
            .map(|redactor| redactor.text(&format!("{:?}", admitted.headers)));
        assert!(echo.is_ok_and(|echo| !echo.contains(SECRET)));
    }
}

/// Any grants file is rejected, or it round-trips.
pub fn grants_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(entries) = GrantFile::parse(text) else {
        return;
    };
    assert!(entries.keys().all(|digest| digest.len() == 64));
    let written = toml::to_string_pretty(&entries).expect("grants are TOML");
    let again: Result<BTreeMap<_, _>, _> = GrantFile::parse(&written);
    assert_eq!(again.ok().as_ref(), Some(&entries), "{text:?}");
}

/// Any manifest is rejected with a reason, or it only narrows grants and limits.
pub fn manifest(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let manifest = match Manifest::parse(text) {
        Ok(manifest) => manifest,
        Err(reason) => {
            assert!(!reason.is_empty());
            return;
        }
    };
    let limits = Limits::default();
    let narrowed = manifest.budgets().narrow(limits.clone());
    assert!(narrowed.fuel <= limits.fuel && narrowed.cpu_time <= limits.cpu_time);
    assert!(narrowed.wall_time <= limits.wall_time && !narrowed.wall_time.is_zero());
    assert!(narrowed.memory <= limits.memory);
    assert!(narrowed.host_calls <= limits.host_calls && narrowed.http_calls <= limits.http_calls);
    assert!(narrowed.model_calls <= limits.model_calls);
    assert!(narrowed.model_tokens <= limits.model_tokens);
    for arguments in [
        &["model"][..],
        &["model=judge", "http=https://api.example"],
        &[
            "state",
            "http=http://127.0.0.1:9000",
            "http=https://api.example",
        ],
        &["secret=KEY:API_KEY@https://api.example"],
        &[],
    ] {
        let mut grants = Grants::default();
        for argument in arguments {
            // Constant valid arguments.
            let _ = grants.add(argument);
        }
        let narrowed = manifest.narrow(&grants);
        assert!(
            narrowed.difference(&grants).is_empty(),
            "{text:?} gives {narrowed:?}"
        );
        assert!(narrowed.secrets.len() <= grants.secrets.len());
        assert_eq!(manifest.narrow(&narrowed), narrowed, "{text:?}");
        assert!(
            manifest.unrequested_grants(&narrowed).is_empty(),
            "{text:?} leaves {narrowed:?}"
        );
    }
}

fn assert_valid(verdict: &Verdict) {
    let rules = VerdictRules::default();
    let in_range = |value: f32| value.is_finite() && (rules.min..=rules.max).contains(&value);
    assert!(in_range(verdict.reward), "{verdict:?}");
    assert!(verdict.votes.len() <= rules.votes);
    assert!(verdict.votes.iter().all(|vote| in_range(vote.score)));
    assert!(verdict.rationale.len() <= rules.text_size);
    assert!(
        verdict
            .metrics
            .iter()
            .all(|metric| metric.value.is_finite())
    );
}

/// Reads values from the bytes, and zeros after their end.
struct Source<'a>(&'a [u8]);

impl Source<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// Small numbers are as likely as arbitrary bits, so that some results are accepted.
    fn float(&mut self) -> f32 {
        match self.byte() % 3 {
            0 => f32::from(self.byte().cast_signed()) / 128.0,
            1 => 0.0,
            _ => f32::from_bits(u32::from_le_bytes([(); 4].map(|()| self.byte()))),
        }
    }

    /// Usually `expected` values, sometimes one more or less.
    fn floats(&mut self, expected: usize) -> Vec<f32> {
        let count = match self.byte() {
            0 => expected + 1,
            1 => expected.saturating_sub(1),
            _ => expected,
        };
        (0..count).map(|_| self.float()).collect()
    }

    fn text(&mut self) -> String {
        let length = usize::from(self.byte()).min(self.0.len());
        let (text, rest) = self.0.split_at(length);
        self.0 = rest;
        String::from_utf8_lossy(text).into_owned()
    }

    fn metrics(&mut self) -> Vec<Metric> {
        (0..self.byte() % 4)
            .map(|_| Metric {
                name: self.text(),
                value: f64::from(self.float()),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Arbitrary bytes, a component header with arbitrary bytes, or a component with one byte changed.
    fn component_files() -> impl Strategy<Value = Vec<u8>> {
        let header = b"\0asm\x0d\0\x01\0".to_vec();
        let good = crate::embedded_component("judge-minimal").unwrap().to_vec();
        let changed = (any::<prop::sample::Index>(), any::<u8>()).prop_map(move |(at, byte)| {
            let mut bytes = good.clone();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes
        });
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            prop::collection::vec(any::<u8>(), 0..200)
                .prop_map(move |tail| [header.clone(), tail].concat()),
            changed,
        ]
    }

    /// Requests made of fragments of malicious URLs, each prefixed with its length.
    fn requests() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop::sample::select(vec![
            "https://",
            "http://",
            "api.example",
            "127.0.0.1",
            ":9000",
            ":443",
            "@",
            "\\",
            "/",
            "//",
            "..",
            "#",
            "?",
            "%2e",
            "\t",
            "\r\n",
            "{{secret:KEY}}",
            "{{secret:",
            "x",
            "0x7f000001",
            "[::ffff:127.0.0.1]",
            "\u{ff0e}",
            "evil.example",
            "Authorization",
            "Range",
            "GET",
        ]);
        let text = prop::collection::vec(piece, 0..6).prop_map(|pieces| {
            let text = pieces.concat();
            let mut bytes = vec![u8::try_from(text.len()).unwrap()];
            bytes.extend(text.as_bytes());
            bytes
        });
        prop::collection::vec(text, 6)
            .prop_map(|texts| [&texts[..2], &[vec![1]][..], &texts[2..]].concat().concat())
    }

    /// Lines of grants files in any order.
    fn grants_files() -> impl Strategy<Value = Vec<u8>> {
        let line = prop::sample::select(vec![
            "[aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa]",
            "[bbbb]",
            "plugin = \"j\"",
            "at_ms = 1",
            "[aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.grants]",
            "allow = [\"http\", \"state\"]",
            "allow = [\"root\"]",
            "origins = [\"https://api.example\"]",
            "origins = [\"https://api.example/path\"]",
            "models = [\"judge\"]",
            "unknown = 1",
        ]);
        prop::collection::vec(line, 0..8).prop_map(|lines| lines.join("\n").into_bytes())
    }

    /// Lines of manifests in any order.
    fn manifests() -> impl Strategy<Value = Vec<u8>> {
        let line = prop::sample::select(vec![
            "[plugin]",
            "[wants]",
            "[limits]",
            "[other]",
            "name = \"j\"",
            "component = \"../j.wasm\"",
            "http = [\"https://api.example\", \"https://API.example:443/\"]",
            "http = [\"http://2130706433:9000\"]",
            "http = [\"https://user@api.example\"]",
            "http = []",
            "models = [\"judge\"]",
            "models = [\"\"]",
            "wall_ms = 1",
            "wall_ms = 0",
            "fuel = 99999999999999",
            "model_calls = -1",
            "memory_bytes = 1",
            "\u{0}",
        ]);
        prop::collection::vec(line, 0..8).prop_map(|lines| lines.join("\n").into_bytes())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn manifests_are_rejected_or_only_narrow(bytes in manifests()) {
            manifest(&bytes);
        }

        #[test]
        fn results_are_rejected_or_valid(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            results(&bytes);
        }

        #[test]
        fn requests_are_rejected_or_go_to_granted_origins(bytes in requests()) {
            url_policy(&bytes);
        }

        #[test]
        fn grants_files_are_rejected_or_round_trip(bytes in grants_files()) {
            grants_file(&bytes);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn component_files_are_rejected_or_their_calls_end(bytes in component_files()) {
            loading(&bytes);
        }
    }
}
