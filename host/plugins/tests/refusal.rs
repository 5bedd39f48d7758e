//! Promise: what is no plugin, or wants more than it was granted, is refused at load, and the
//! message says what to do.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

mod common;

use clawhost_plugins::{Capability, Grants, Kind, PluginError, PluginHost, Profile, embedded};
use common::{Fixture, host, load, options, refusal, still_serves};

fn load_bytes(host: &PluginHost, bytes: &[u8]) -> PluginError {
    host.load("fixture", bytes, &Grants::default(), Profile::default())
        .unwrap_err()
}

fn importing(import: &str) -> Fixture {
    Fixture {
        imports: format!("(import \"{import}\" (instance))"),
        ..Fixture::reward("0")
    }
}

#[tokio::test]
async fn bytes_that_are_no_component_are_told_apart() {
    let host = host();
    let core = wat::parse_str("(module (func (export \"score\")))").unwrap();
    assert_eq!(load_bytes(&host, &core), PluginError::CoreModule);

    assert!(matches!(
        load_bytes(&host, b"#!/bin/sh\n"),
        PluginError::NotWasm { .. }
    ));
    assert!(matches!(
        load_bytes(&host, b""),
        PluginError::NotWasm { .. }
    ));
    assert!(matches!(
        load_bytes(&host, b"\x7fELF\x02\x01\x01\x00________"),
        PluginError::Precompiled
    ));

    let good = Fixture::reward("0").wasm();
    for cut in [9, 40, good.len() / 2, good.len() - 1] {
        let error = load_bytes(&host, &good[..cut]);
        assert!(
            matches!(
                error,
                PluginError::Damaged { .. } | PluginError::Invalid(_) | PluginError::NoKind { .. }
            ),
            "cut at {cut}: {error}"
        );
    }
    let mut noise = good.clone();
    for (i, byte) in noise.iter_mut().enumerate().skip(8) {
        *byte = byte.wrapping_mul(31).wrapping_add(i as u8);
    }
    let error = load_bytes(&host, &noise);
    assert!(
        matches!(error, PluginError::Damaged { .. } | PluginError::Invalid(_)),
        "{error}"
    );

    let small = PluginHost::new(clawhost_plugins::HostOptions {
        max_component_bytes: 100,
        ..options()
    })
    .unwrap();
    assert_eq!(
        load_bytes(&small, &good),
        PluginError::TooLarge {
            size: good.len(),
            limit: 100
        }
    );
    still_serves(&host).await;
}

#[tokio::test]
async fn an_ungranted_import_is_refused_with_the_command_that_grants_it() {
    let host = host();
    let fixture = importing("clawhost:plugin/http@0.1.0");
    let digest = host.inspect(&fixture.wasm()).unwrap().digest;
    let error = load_bytes(&host, &fixture.wasm());
    assert_eq!(
        error,
        PluginError::NotGranted {
            name: "fixture".into(),
            wanted: "http".into(),
            digest: digest.clone(),
            arguments: "http=https://HOST".into(),
        }
    );
    let told = error.to_string();
    assert!(
        told.contains(&digest) && told.ends_with("clawhost plugin grant fixture http=https://HOST"),
        "{told}"
    );

    // Granted, this host then says that it has no way out.
    let granted = Grants {
        allow: [Capability::Http].into(),
        ..Grants::default()
    };
    assert!(matches!(
        host.load("fixture", &fixture.wasm(), &granted, Profile::default()),
        Err(PluginError::NotAvailable {
            capability: Capability::Http,
            ..
        })
    ));

    still_serves(&host).await;
}

#[tokio::test]
async fn model_and_state_need_a_provider() {
    let host = host();
    for (import, capability) in [
        ("clawhost:plugin/model@0.1.0", Capability::Model),
        ("clawhost:plugin/state@0.1.0", Capability::State),
    ] {
        let fixture = importing(import);
        let grants = Grants {
            allow: [capability].into(),
            ..Grants::default()
        };
        let error = host
            .load("fixture", &fixture.wasm(), &grants, Profile::default())
            .unwrap_err();
        assert!(
            matches!(error, PluginError::NotAvailable { capability: c, .. } if c == capability),
            "{error}"
        );
    }
}

#[test]
fn strange_imports_versions_and_worlds_are_named() {
    assert_eq!(
        refusal(&importing("wasi:http/outgoing-handler@0.2.0")),
        PluginError::UnknownImport {
            name: "wasi:http/outgoing-handler@0.2.0".into()
        }
    );
    assert_eq!(
        refusal(&importing("clawhost:plugin/teleport@0.1.0")),
        PluginError::UnknownImport {
            name: "clawhost:plugin/teleport@0.1.0".into()
        }
    );
    assert_eq!(
        refusal(&importing("clawhost:plugin/log@0.2.0")),
        PluginError::OtherVersion {
            name: "clawhost:plugin/log@0.2.0".into()
        }
    );
    assert_eq!(
        refusal(&importing("clawhost:plugin/sandbox@0.1.0")),
        PluginError::OutsideWorld {
            capability: Capability::Sandbox,
            world: "judge-plugin"
        }
    );
    let exporting = |export| Fixture {
        export,
        ..Fixture::reward("0")
    };
    assert_eq!(
        refusal(&exporting("clawhost:plugin/judge@0.2.0")),
        PluginError::OtherVersion {
            name: "clawhost:plugin/judge@0.2.0".into()
        }
    );
    assert_eq!(
        refusal(&exporting("acme:tools/judge@0.1.0")),
        PluginError::NoKind {
            exports: "acme:tools/judge@0.1.0".into()
        }
    );
    // The right name with another shape.
    assert!(matches!(
        refusal(&exporting("clawhost:plugin/loss@0.1.0")),
        PluginError::Mismatch(_)
    ));
    let shapeless = wat::parse_str(
        "(component (instance $i) (export \"clawhost:plugin/judge@0.1.0\" (instance $i)))",
    )
    .unwrap();
    let error = host()
        .load(
            "fixture",
            &shapeless,
            &Grants::default(),
            Profile::default(),
        )
        .unwrap_err();
    assert!(matches!(error, PluginError::Mismatch(_)), "{error}");
}

#[test]
fn what_can_never_start_is_refused_at_load() {
    let hungry = Fixture {
        memory: "8192",
        ..Fixture::reward("0")
    };
    let error = refusal(&hungry);
    assert!(
        matches!(
            error,
            PluginError::TooHungry { .. } | PluginError::Invalid(_)
        ),
        "{error}"
    );
}

#[test]
fn inspection_says_what_a_component_is() {
    let host = host();
    let inspection = host.inspect(embedded("judge-next-state").unwrap()).unwrap();
    assert_eq!(inspection.kind, Kind::Judge);
    assert_eq!(inspection.contract, "0.1.0");
    assert!(!inspection.wasi);
    assert!(
        inspection.capabilities.iter().all(|c| c.is_harmless()),
        "{inspection:?}"
    );
    let plugin = load(&host, &Fixture::reward("1"));
    assert_eq!(plugin.imports(), ["clawhost:plugin/types@0.1.0"]);
    assert_eq!(plugin.digest().len(), 64);
    assert_eq!(embedded("no-such-judge"), None);
}
