//! Components are pulled from a registry that may fail or lie.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod registry;
mod signing;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::fs;
use std::path::Path;

use clawhost_oci::{OciError, PullOptions, Puller};
use serde_json::json;
use tempfile::TempDir;

use registry::{Access, Registry, digest, manifest};

const COMPONENT: &[u8] = b"\0asm component of the tests";

fn puller(cache: &Path) -> Puller {
    Puller::new(PullOptions {
        cache: Some(cache.to_owned()),
        ..PullOptions::default()
    })
}

/// The error of a pull, and its message, which is one sentence with the next step.
fn rejection(puller: &Puller, reference: &str) -> (OciError, String) {
    let error = puller.pull(reference).unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("; ") && !message.contains('\n'),
        "{message}"
    );
    (error, message)
}

#[test]
fn a_component_is_pulled_once_with_a_token_and_then_works_offline() {
    let (cache, registry) = (TempDir::new().unwrap(), Registry::start(Access::Token));
    let text = "[wants]\nmodels = [\"judge\"]";
    let reference = registry.push(
        COMPONENT,
        &json!({"io.clawhost.plugin-toml": STANDARD.encode(text)}),
    );
    let first = puller(cache.path());
    // Commands pull within a runtime's context.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let artifact = runtime.block_on(async { first.pull(&reference) }).unwrap();
    assert_eq!(artifact.component, COMPONENT);
    assert_eq!(artifact.plugin_toml.as_deref(), Some(text));
    let (_, manifest_digest) = reference.split_once('@').unwrap();
    let manifest = format!("/v2/me/judge/manifests/{manifest_digest}");
    assert_eq!(
        registry.requests(),
        [
            manifest.clone(),
            "/token".to_owned(),
            format!("{manifest} Bearer of-the-test"),
            format!(
                "/v2/me/judge/blobs/{} Bearer of-the-test",
                digest(COMPONENT)
            ),
        ]
    );
    registry.stop();
    let later = puller(cache.path());
    assert_eq!(later.pull(&reference).unwrap(), artifact);
    // A running server knows the manifest, whatever happens to the cache.
    fs::remove_dir_all(cache.path()).unwrap();
    assert_eq!(
        later.plugin_toml(&reference).unwrap().as_deref(),
        Some(text)
    );
    let (error, message) = rejection(&puller(cache.path()), &reference);
    assert!(matches!(error, OciError::Unreachable { .. }), "{message}");
}

#[test]
fn credentials_are_sent_to_the_token_service_or_the_registry_that_asks() {
    for access in [Access::Login, Access::Basic] {
        let (dir, registry) = (TempDir::new().unwrap(), Registry::start(access));
        let reference = registry.push(COMPONENT, &json!({}));
        let docker_config = dir.path().join("config.json");
        let puller = Puller::new(PullOptions {
            docker_config: Some(docker_config.clone()),
            ..PullOptions::default()
        });
        let (error, message) = rejection(&puller, &reference);
        assert!(matches!(error, OciError::Denied { .. }), "{message}");
        assert!(
            message.contains(&format!("docker login {}", registry.name())),
            "{message}"
        );
        let login = |auth: &str| {
            let config = json!({"auths": {registry.name(): {"auth": auth}}});
            fs::write(&docker_config, config.to_string()).unwrap();
        };
        // `ada:wrong`
        login("YWRhOndyb25n");
        let (error, message) = rejection(&puller, &reference);
        assert!(matches!(error, OciError::Denied { .. }), "{message}");
        registry.requests();
        // `ada:secret`
        login("YWRhOnNlY3JldA==");
        assert_eq!(puller.pull(&reference).unwrap().component, COMPONENT);
        let requests = registry.requests();
        assert!(
            !requests[0].contains(' '),
            "not before they are asked for: {requests:?}"
        );
    }
}

#[test]
fn a_tag_is_rejected_with_the_reference_that_pins_it() {
    let (cache, registry) = (TempDir::new().unwrap(), Registry::start(Access::Open));
    let pinned = registry.push(COMPONENT, &json!({}));
    let tagged = format!("oci://{}/me/judge:1.0", registry.name());
    let (error, message) = rejection(&puller(cache.path()), &tagged);
    assert!(matches!(error, OciError::Unpinned { .. }), "{message}");
    assert!(message.ends_with(&format!("pass {pinned}")), "{message}");
    let untagged = format!("oci://{}/me/judge", registry.name());
    let (error, message) = rejection(&puller(cache.path()), &untagged);
    assert!(matches!(error, OciError::NotFound { .. }), "{message}");
    assert!(message.contains("manifests/latest"), "{message}");
}

#[test]
fn bytes_with_another_digest_are_rejected_and_not_kept() {
    let (cache, registry) = (TempDir::new().unwrap(), Registry::start(Access::Open));
    let reference = registry.push(COMPONENT, &json!({}));
    let tampered = [&COMPONENT[..COMPONENT.len() - 1], b"!"].concat();
    registry.blob(COMPONENT, tampered.clone());
    let (error, message) = rejection(&puller(cache.path()), &reference);
    assert!(
        matches!(
            error,
            OciError::Digest {
                what: "the component",
                ..
            }
        ),
        "{message}"
    );
    assert!(message.contains(&digest(&tampered)), "{message}");
    registry.blob(COMPONENT, COMPONENT.to_vec());
    assert_eq!(
        puller(cache.path()).pull(&reference).unwrap().component,
        COMPONENT
    );

    // A manifest that names another component.
    let other = registry.push(b"another", &json!({"a": "b"}));
    let (_, expected) = other.split_once('@').unwrap();
    let path = format!("manifests/{expected}");
    let manifest = manifest(COMPONENT, COMPONENT.len(), &json!({}));
    registry.serve(&path, 200, None, manifest.to_string().into_bytes());
    let (error, message) = rejection(&puller(cache.path()), &other);
    assert!(
        matches!(
            error,
            OciError::Digest {
                what: "the manifest",
                ..
            }
        ),
        "{message}"
    );
}

#[test]
fn a_damaged_cache_is_repaired() {
    let (cache, registry) = (TempDir::new().unwrap(), Registry::start(Access::Open));
    let reference = registry.push(COMPONENT, &json!({}));
    puller(cache.path()).pull(&reference).unwrap();
    let files: Vec<_> = fs::read_dir(cache.path()).unwrap().collect();
    assert_eq!(files.len(), 2);
    for file in files {
        fs::write(file.unwrap().path(), "damaged").unwrap();
    }
    for expected in [2, 0] {
        registry.requests();
        let artifact = puller(cache.path()).pull(&reference).unwrap();
        assert_eq!(artifact.component, COMPONENT);
        assert_eq!(registry.requests().len(), expected);
    }
}

#[test]
fn sizes_are_bounded() {
    let (cache, registry) = (TempDir::new().unwrap(), Registry::start(Access::Open));
    let small = Puller::new(PullOptions {
        max_component_size: COMPONENT.len() as u64 - 1,
        ..PullOptions::default()
    });
    let reference = registry.push(COMPONENT, &json!({}));
    let (error, message) = rejection(&small, &reference);
    assert!(matches!(error, OciError::TooLarge { .. }), "{message}");
    assert!(
        message.contains("plugins.host.max_component_size"),
        "{message}"
    );
    assert_eq!(
        registry.requests().len(),
        1,
        "the component is not requested"
    );

    // More bytes than the manifest says.
    let short = manifest(COMPONENT, 8, &json!({}));
    let reference = registry.manifest(&short);
    let (error, message) = rejection(&puller(cache.path()), &reference);
    assert!(
        matches!(error, OciError::Oversized { limit: 8, .. }),
        "{message}"
    );

    let padding = json!({"padding": "x".repeat(1 << 20)});
    let reference = registry.push(COMPONENT, &padding);
    let (error, message) = rejection(&puller(cache.path()), &reference);
    assert!(matches!(error, OciError::Oversized { .. }), "{message}");
}

#[test]
fn what_is_missing_or_something_else_is_named() {
    let (cache, registry) = (TempDir::new().unwrap(), Registry::start(Access::Open));
    let puller = puller(cache.path());
    let absent = registry.reference(&digest(b"absent"));
    let (error, message) = rejection(&puller, &absent);
    assert!(matches!(error, OciError::NotFound { .. }), "{message}");
    // A manifest without its component.
    let lost = registry.manifest(&manifest(b"lost", 4, &json!({})));
    let (error, message) = rejection(&puller, &lost);
    assert!(matches!(error, OciError::NotFound { .. }), "{message}");
    let mut image = manifest(COMPONENT, 1, &json!({}));
    image["layers"][0]["mediaType"] = json!("application/vnd.oci.image.layer.v1.tar+gzip");
    let (error, message) = rejection(&puller, &registry.manifest(&image));
    assert!(matches!(error, OciError::Manifest { .. }), "{message}");
    assert!(
        message.contains("0 layers of the type application/wasm"),
        "{message}"
    );
    registry.serve("manifests/busy", 503, None, b"try later".to_vec());
    let busy = format!("oci://{}/me/judge:busy", registry.name());
    let (error, message) = rejection(&puller, &busy);
    assert!(
        matches!(error, OciError::Status { status: 503, .. }),
        "{message}"
    );
    assert!(message.contains("try later"), "{message}");
}

#[test]
fn redirects_that_are_not_https_are_not_followed() {
    let (cache, registry) = (TempDir::new().unwrap(), Registry::start(Access::Token));
    let reference = registry.push(COMPONENT, &json!({}));
    let other_host = Registry::start(Access::Open);
    for location in [
        format!("http://{}/v2/me/judge/blobs/x", other_host.name()),
        "/v2/me/judge/blobs/x".to_owned(),
        "file:///etc/passwd".to_owned(),
    ] {
        registry.redirect(COMPONENT, &location);
        let (error, message) = rejection(&puller(cache.path()), &reference);
        assert!(matches!(error, OciError::Insecure { .. }), "{message}");
    }
    assert!(other_host.requests().is_empty());
}
