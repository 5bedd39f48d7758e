//! Components must be signed by a trusted key, if there are trusted keys.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clawhost_config::OciConfig;
use clawhost_oci::{OciError, PullOptions, Puller};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::registry::{Access, Registry};
use crate::{COMPONENT, rejection};

/// Public keys that exist for these tests only, and signatures of [`COMPONENT`] by them.
const KEY: &str = "RWRjbGF3dGVzdIqI4910CfGV/VLbLTy6XXLKZwm/HZQSG/N0iAG0D29c";
const OTHER_KEY: &str = "RWRvdGhlcnRzdIE5dw6ofRdfVqNUZsNMfszLjYqRtO43ol32D1uPybOU";
const SIGNATURE: &str = "untrusted comment: signature from minisign secret key
RURjbGF3dGVzdNVNaQ9vbrVbxckRA3UguLoP0G+l+VOOKF38XTd+0xy6mF6sjesbdchxQZz0rQdmzIuYGmj2rPUMzrdZXDBqOQQ=
trusted comment: timestamp:1700000000\tfile:judge.wasm\thashed
qXiylmKoP3V5nFuk7QchRqQS0HdJefYEEmkvaHfFLyYHd39NEGUwhL1l79qvKk5q9bHdAdyR0L6j/szKS9lYBg==
";
const OTHER_SIGNATURE: &str = "untrusted comment: signature from minisign secret key
RURvdGhlcnRzdOPlO3hsHckfhpqW+36BN/OvkQwHBZklrIL94p5ynowcI1wOoedjHBrieERUWEDD1wkn2riwn8T9XKIH4/KPEgk=
trusted comment: timestamp:1700000000\tfile:judge.wasm\thashed
MnrgRKCKB0W+48m2i4XAGoMQKfgqWv6dbDzC/sUKzBw4w7+YfhBuGl9curJ7/SYtE1hdsUr7GNERTi2e0mW7Cg==
";

fn signed(signature: &str) -> Value {
    json!({"io.clawhost.minisign": STANDARD.encode(signature)})
}

fn trusting(cache: &TempDir, keys: &[&str]) -> Puller {
    Puller::new(PullOptions {
        config: OciConfig {
            trusted_keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            ..OciConfig::default()
        },
        cache: Some(cache.path().to_owned()),
        ..PullOptions::default()
    })
}

#[test]
fn a_signature_by_any_of_the_trusted_keys_is_accepted() {
    let (cache, registry) = (TempDir::new().unwrap(), Registry::start(Access::Open));
    for signature in [SIGNATURE, OTHER_SIGNATURE] {
        let reference = registry.push(COMPONENT, &signed(signature));
        let puller = trusting(&cache, &[OTHER_KEY, KEY]);
        assert_eq!(puller.pull(&reference).unwrap().component, COMPONENT);
    }
}

#[test]
fn other_components_are_rejected_also_from_the_cache() {
    let (cache, registry) = (TempDir::new().unwrap(), Registry::start(Access::Open));
    let unsigned = registry.push(COMPONENT, &json!({}));
    let by_other = registry.push(COMPONENT, &signed(OTHER_SIGNATURE));
    let broken = registry.push(COMPONENT, &signed("signed, honestly"));
    let comment = SIGNATURE.replace("judge.wasm", "other.wasm");
    let comment = registry.push(COMPONENT, &signed(&comment));
    let replayed = registry.push(b"another component", &signed(SIGNATURE));
    for reference in [&unsigned, &by_other, &broken, &comment, &replayed] {
        // Without trusted keys, the digest is enough; this also fills the cache.
        trusting(&cache, &[]).pull(reference).unwrap();
    }
    registry.stop();
    let puller = trusting(&cache, &[KEY]);
    let (error, message) = rejection(&puller, &unsigned);
    assert!(matches!(error, OciError::Unsigned { .. }), "{message}");
    assert!(message.contains("plugins.oci.trusted_keys"), "{message}");
    for (reference, reason) in [
        (&by_other, "by a key that is not trusted"),
        (&broken, "not a .minisig file"),
        (&comment, "does not match the component"),
        (&replayed, "does not match the component"),
    ] {
        let (error, message) = rejection(&puller, reference);
        assert!(matches!(error, OciError::Signature { .. }), "{message}");
        assert!(message.contains(reason), "{message}");
    }
}

#[test]
fn a_signature_that_is_not_in_base64_is_rejected_with_the_option_that_pushes_it() {
    let (cache, registry) = (TempDir::new().unwrap(), Registry::start(Access::Open));
    let plain = registry.push(COMPONENT, &json!({"io.clawhost.minisign": SIGNATURE}));
    let (error, message) = rejection(&trusting(&cache, &[KEY]), &plain);
    assert!(matches!(error, OciError::Annotation { .. }), "{message}");
    let option = "--annotation \"io.clawhost.minisign=$(base64 -w0 FILE)\"";
    assert!(message.contains(option), "{message}");
}

#[test]
fn an_unsigned_component_is_not_downloaded() {
    let (cache, registry) = (TempDir::new().unwrap(), Registry::start(Access::Open));
    let unsigned = registry.push(COMPONENT, &json!({}));
    trusting(&cache, &[KEY]).pull(&unsigned).unwrap_err();
    assert_eq!(registry.requests().len(), 1);
}
