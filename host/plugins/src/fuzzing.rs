//! What must hold for any bytes at all: the properties behind the fuzz targets in `fuzz/`.
//!
//! Each function takes bytes, makes of them what an attacker controls, and panics when the host lets
//! something through that it promises to refuse. The same functions run for a second in `cargo test`.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use tokio::runtime::Runtime;

use crate::bindings::{advantage, loss};
use crate::call::{CallContext, Limits};
use crate::capability::http::policy;
use crate::capability::http::redact::Redactor;
use crate::conversation::Trajectory;
use crate::grants::{GrantBook, Grants, Manifest};
use crate::host::{HostOptions, PluginHost};
use crate::profile::Profile;
use crate::verdict::{Metric, Verdict, VerdictRules, Vote};
use crate::worlds;

/// Any file: it is refused, or it is a plugin whose calls end.
pub fn loading(bytes: &[u8]) {
    static HOST: OnceLock<Option<(PluginHost, Runtime)>> = OnceLock::new();
    let host = HOST.get_or_init(|| {
        let options = HostOptions {
            threads: 1,
            instances: 2,
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
            cpu_ticks: 20,
            wall_ms: 2_000,
            ..Limits::default()
        },
        ..CallContext::default()
    };
    let judged = runtime.block_on(plugin.score_turn(call, &Trajectory::new("any", "any"), 0));
    if let Ok(verdict) = judged.outcome {
        assert_sound(&verdict);
    }
}

/// Any result: what passes is finite, in range, of the right length and bounded.
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
        assert_sound(&verdict);
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
    if let Ok(taken) = worlds::loss::checked(gradient, needs, &mask, &VerdictRules::default()) {
        assert!(taken.loss.is_finite());
        assert_eq!(taken.d_logprob.len(), mask.len());
        let all = [&taken.d_logprob, &taken.d_topk, &taken.d_entropy];
        assert!(all.into_iter().flatten().all(|partial| partial.is_finite()));
        let still = mask.iter().zip(&taken.d_logprob);
        assert!(
            still
                .into_iter()
                .all(|(trains, partial)| *trains != 0 || *partial == 0.0)
        );
    }

    let (sequences, tokens) = (usize::from(source.byte() % 8), 16);
    let estimate = advantage::Estimate {
        per_token: source.byte() & 1 == 1,
        values: source.floats(sequences),
        metrics: Vec::new(),
    };
    let rules = VerdictRules::default();
    if let Ok(taken) = worlds::advantage::checked(estimate, sequences, tokens, &rules) {
        let (values, expected) = match taken.advantages {
            worlds::advantage::Advantages::PerSequence(values) => (values, sequences),
            worlds::advantage::Advantages::PerToken(values) => (values, tokens),
        };
        assert_eq!(values.len(), expected);
        assert!(values.iter().all(|value| value.is_finite()));
    }
}

/// Any URL, header and body: what is admitted goes to a granted origin and carries no secret but where
/// it belongs.
pub fn url_policy(bytes: &[u8]) {
    const SECRET: &str = "s3cret-of-the-host";
    if String::from_utf8_lossy(bytes).contains(SECRET) {
        // An attacker who knows it needs no way to get it.
        return;
    }
    let mut grants = Grants::default();
    for argument in [
        "http=https://api.example",
        "http=http://127.0.0.1:9000",
        "secret=KEY:API_KEY@https://api.example",
    ] {
        // These are written above, and are right.
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
        let host = admitted.url.host_str().unwrap_or_default();
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

/// Any grants file: it is refused, or what it grants is read again as it was written.
pub fn grants_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(entries) = GrantBook::parse(text) else {
        return;
    };
    assert!(entries.keys().all(|digest| digest.len() == 64));
    let written = toml::to_string_pretty(&entries).unwrap_or_default();
    let again: Result<BTreeMap<_, _>, _> = GrantBook::parse(&written);
    assert_eq!(again.ok().as_ref(), Some(&entries), "{text:?}");
}

/// Any manifest: it is refused in one line, or it takes away and never gives.
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
    assert!(narrowed.fuel <= limits.fuel && narrowed.cpu_ticks <= limits.cpu_ticks);
    assert!(narrowed.wall_ms <= limits.wall_ms && narrowed.wall_ms > 0);
    assert!(narrowed.memory_bytes <= limits.memory_bytes);
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
            // These are written above, and are right.
            let _ = grants.add(argument);
        }
        let left = manifest.narrow(&grants);
        assert!(left.beyond(&grants).is_empty(), "{text:?} gives {left:?}");
        assert!(left.secrets.len() <= grants.secrets.len());
        assert_eq!(manifest.narrow(&left), left, "{text:?}");
        assert!(
            manifest.unwanted(&left).is_empty(),
            "{text:?} leaves {left:?}"
        );
    }
}

fn assert_sound(verdict: &Verdict) {
    let rules = VerdictRules::default();
    let in_range = |value: f32| value.is_finite() && (rules.min..=rules.max).contains(&value);
    assert!(in_range(verdict.reward), "{verdict:?}");
    assert!(verdict.votes.len() <= rules.votes);
    assert!(verdict.votes.iter().all(|vote| in_range(vote.score)));
    assert!(verdict.rationale.len() <= rules.text_bytes);
    assert!(
        verdict
            .metrics
            .iter()
            .all(|metric| metric.value.is_finite())
    );
}

/// Reads values off the front of the bytes; zeros when they are spent.
struct Source<'a>(&'a [u8]);

impl Source<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// Small numbers are as likely as any bits, so that some results pass.
    fn float(&mut self) -> f32 {
        match self.byte() % 3 {
            0 => f32::from(self.byte().cast_signed()) / 128.0,
            1 => 0.0,
            _ => f32::from_bits(u32::from_le_bytes([(); 4].map(|()| self.byte()))),
        }
    }

    /// About as many as are right.
    fn floats(&mut self, right: usize) -> Vec<f32> {
        let count = match self.byte() {
            0 => right + 1,
            1 => right.saturating_sub(1),
            _ => right,
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

    /// A file that begins as a component does, or is one with a byte changed.
    fn files() -> impl Strategy<Value = Vec<u8>> {
        let header = b"\0asm\x0d\0\x01\0".to_vec();
        let good = crate::embedded("judge-minimal").unwrap().to_vec();
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

    /// Pieces that URLs of attackers are made of, each with its length before it.
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

    /// Lines that grants files are made of, in any order.
    fn files_of_grants() -> impl Strategy<Value = Vec<u8>> {
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

    /// Lines that manifests are made of, in any order.
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
        fn any_manifest_is_refused_or_takes_away(bytes in manifests()) {
            manifest(&bytes);
        }

        #[test]
        fn any_result_is_refused_or_sound(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            results(&bytes);
        }

        #[test]
        fn any_request_is_refused_or_goes_where_it_may(bytes in requests()) {
            url_policy(&bytes);
        }

        #[test]
        fn any_grants_file_is_refused_or_read_again(bytes in files_of_grants()) {
            grants_file(&bytes);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn any_file_is_refused_or_its_calls_end(bytes in files()) {
            loading(&bytes);
        }
    }
}
