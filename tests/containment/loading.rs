//! Cases 19 to 23 and 29: files that are not plugins, need more grants than they have, or changed since they were
//! granted.

use clawhost_plugins::{
    Capability, FaultKind, GrantEditor, GrantEntry, GrantFile, HostOptions, Kind, PluginError,
    PluginHost, PluginHostConfig, Profile, digest,
};

use super::guest::{Guest, HTTP, MODEL, STATE, verdict};
use super::hosting::{
    call, default_limits, grants, host, judge, options, refusal, steady, still_serves, trajectory,
};

/// A component from its text.
fn component(text: &str) -> Vec<u8> {
    wat::parse_str(format!("(component {text})")).unwrap_or_else(|e| panic!("{e}"))
}

fn importing(name: &str) -> Vec<u8> {
    component(&format!("(import \"{name}\" (instance))"))
}

/// A guest that imports an interface without a grant, which must be rejected.
fn wanting(interface: &str) -> Guest {
    match interface {
        STATE => Guest::reward("0").with_state(),
        MODEL => Guest::reward("0").with_model(),
        _ => Guest::reward("0").calling(HTTP, "send", SEND),
    }
}

const SEND: &str = "$send (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)";

/// A guest that imports the sandbox interface.
fn sandboxed() -> Guest {
    Guest::environment(&[]).calling(
        "clawhost:plugin/sandbox@0.1.2",
        "restore",
        "$restore (param i32 i32 i32)",
    )
}

/// The path tricks use WASI's filesystem, which has no preopened directory. Those in machines are tested by
/// `host/sandbox`.
#[tokio::test]
async fn case_19_path_tricks_find_no_files() {
    let host = host();
    // Half the number of directories plus a quarter.
    let count = verdict(
        "0",
        "(call $directories (i32.const 1024))
         (f32.store (i32.const 4) (f32.add (f32.const 0.25)
           (f32.mul (f32.const 0.5) (f32.convert_i32_u (i32.load (i32.const 1028))))))",
    );
    let judged = judge(
        &steady(&host, &Guest::judge(&count).with_directories()),
        default_limits(),
    )
    .await;
    assert_eq!(judged.outcome.unwrap().reward, 0.25);
    still_serves(&host).await;
}

#[tokio::test]
async fn case_20_missing_grants_are_rejected_with_the_grant_command() {
    let host = host();
    let wanted = wanting(HTTP).wasm();
    let error = refusal(&host, &wanted, &[]);
    let message = error.to_string();
    assert!(matches!(error, PluginError::NotGranted { .. }), "{message}");
    assert!(message.contains(&digest(&wanted)), "{message}");
    assert!(
        message.ends_with("clawhost plugin grant FILE http=https://HOST"),
        "{message}"
    );
    // Other grants do not help.
    assert!(matches!(
        refusal(&host, &wanted, &["state", "model"]),
        PluginError::NotGranted { .. }
    ));

    // Granted, the host still reports that it does not provide it.
    for (interface, argument, missing) in [
        (HTTP, "http=https://api.example", Capability::Http),
        (MODEL, "model", Capability::Model),
        (STATE, "state", Capability::State),
    ] {
        let error = refusal(&host, &wanting(interface).wasm(), &[argument]);
        assert!(
            matches!(error, PluginError::NotAvailable { capability, .. } if capability == missing),
            "{error}"
        );
    }

    // An interface outside the world cannot be granted.
    let loss = Guest::loss("(i32.const 0)")
        .calling(HTTP, "send", SEND)
        .wasm();
    let outside = PluginError::OutsideWorld {
        capability: Capability::Http,
        world: "loss-plugin",
    };
    assert_eq!(
        refusal(&host, &loss, &["http=https://api.example"]),
        outside
    );
    still_serves(&host).await;
}

#[tokio::test]
async fn case_21_wrong_kinds_versions_and_types_are_named() {
    let host = host();
    for name in [
        "wasi:http/outgoing-handler@0.2.0",
        "clawhost:plugin/teleport@0.1.0",
    ] {
        let error = refusal(&host, &importing(name), &[]);
        assert_eq!(error, PluginError::UnknownImport { name: name.into() });
    }
    let newer = "clawhost:plugin/log@0.2.0";
    let error = refusal(&host, &importing(newer), &[]);
    assert_eq!(
        error,
        PluginError::UnsupportedVersion { name: newer.into() }
    );
    // A name may contain control characters; they are escaped in the message.
    let error = refusal(
        &host,
        &component("(import \"url=<\\1b[31m\\nhi>\" (func))"),
        &[],
    );
    assert!(!error.to_string().contains(['\x1b', '\n']), "{error:?}");
    let doubled =
        "(core module (func) (export \"\\1b[31m\" (func 0)) (export \"\\1b[31m\" (func 0)))";
    let error = refusal(&host, &component(doubled), &[]);
    assert!(matches!(error, PluginError::Invalid(_)), "{error}");
    assert!(!error.to_string().contains(['\x1b', '\n']), "{error:?}");

    let exporting = |names: &[&str]| {
        let exports: Vec<String> = names
            .iter()
            .map(|name| format!("(export \"{name}\" (instance $i))"))
            .collect();
        component(&format!("(instance $i) {}", exports.concat()))
    };
    let judge_02 = "clawhost:plugin/judge@0.2.0";
    assert_eq!(
        refusal(&host, &exporting(&[judge_02]), &[]),
        PluginError::UnsupportedVersion {
            name: judge_02.into()
        }
    );
    let strange = "acme:tools/judge@0.1.0";
    assert_eq!(
        refusal(&host, &exporting(&[strange]), &[]),
        PluginError::NoKind {
            exports: strange.into()
        }
    );
    let both = ["clawhost:plugin/judge@0.1.0", "clawhost:plugin/loss@0.1.0"];
    assert_eq!(
        refusal(&host, &exporting(&both), &[]),
        PluginError::MultipleKinds {
            first: Kind::Judge,
            second: Kind::Loss
        }
    );
    // The right interface without its function, and with a function of another type.
    let shapeless = refusal(&host, &exporting(&["clawhost:plugin/judge@0.1.0"]), &[]);
    assert!(
        matches!(shapeless, PluginError::TypeMismatch(_)),
        "{shapeless}"
    );
    let reshaped = component(
        "(core module $m (func (export \"f\") (result i32) (i32.const 1)))
         (core instance $c (instantiate $m))
         (func $f (result u32) (canon lift (core func $c \"f\")))
         (instance $i (export \"score-turn\" (func $f)))
         (export \"clawhost:plugin/judge@0.1.0\" (instance $i))",
    );
    let reshaped = refusal(&host, &reshaped, &[]);
    assert!(
        matches!(reshaped, PluginError::TypeMismatch(_)),
        "{reshaped}"
    );

    // A valid plugin of one kind, called as another kind.
    let loss = steady(&host, &Guest::loss("(i32.const 0)"));
    let called = loss
        .score_turn(call(default_limits()), &trajectory("x"), 0)
        .await;
    let wrong = FaultKind::WrongKind {
        wanted: Kind::Judge,
        is: Kind::Loss,
    };
    assert_eq!(called.outcome.unwrap_err().kind, wrong);
    still_serves(&host).await;
}

#[tokio::test]
async fn case_22_files_that_are_not_components_are_distinguished() {
    let host = host();
    let load = |bytes: &[u8]| refusal(&host, bytes, &[]);
    let core = wat::parse_str("(module (func (export \"score\")))").unwrap();
    assert_eq!(load(&core), PluginError::CoreModule);
    assert!(matches!(load(b"#!/bin/sh\n"), PluginError::NotWasm { .. }));
    assert!(matches!(load(b""), PluginError::NotWasm { .. }));
    assert!(matches!(
        load(b"\x7fELF\x02\x01\x01\x00________"),
        PluginError::Precompiled
    ));

    let good = Guest::reward("0").wasm();
    for cut in [9, 40, good.len() / 2, good.len() - 1] {
        let error = load(&good[..cut]);
        assert!(
            matches!(
                error,
                PluginError::Malformed { .. }
                    | PluginError::Invalid(_)
                    | PluginError::NoKind { .. }
            ),
            "cut at {cut}: {error}"
        );
    }
    let mut noise = good.clone();
    for (i, byte) in noise.iter_mut().enumerate().skip(8) {
        *byte = byte.wrapping_mul(31).wrapping_add(i.to_le_bytes()[0]);
    }
    let error = load(&noise);
    assert!(
        matches!(
            error,
            PluginError::Malformed { .. } | PluginError::Invalid(_)
        ),
        "{error}"
    );

    let many = component(&format!("(core module {})", "(func)".repeat(300_000)));
    assert!(matches!(
        load(&many),
        PluginError::TooMany {
            what: "functions",
            count: 300_000,
            ..
        }
    ));
    let mut nested = String::new();
    for _ in 0..20 {
        nested = format!("(component {nested})");
    }
    assert!(matches!(
        load(&component(&nested)),
        PluginError::TooMany { .. }
    ));
    // Nested types, each twice as wide as the last.
    let types = |count: u32, step: fn(u32) -> String| {
        let steps: Vec<String> = (0..count)
            .map(|i| format!("(type $t{} {})", i + 1, step(i)))
            .collect();
        component(&format!(
            "(type $t0 (list u8)) {} (import \"f\" (func (param \"x\" $t{count})))",
            steps.concat()
        ))
    };
    let deep = types(20_000, |i| format!("(list $t{i})"));
    let wide = types(60, |i| format!("(tuple $t{i} $t{i})"));
    for bytes in [deep, wide] {
        let error = load(&bytes);
        assert!(
            matches!(
                error,
                PluginError::Invalid(_) | PluginError::UnknownImport { .. }
            ),
            "{error}"
        );
    }
    // Deeply nested blocks are valid code.
    let blocks = format!("{} {}", "block ".repeat(50_000), "end ".repeat(50_000));
    let maze = Guest::reward("0.5").with(&format!("(func {blocks})"));
    assert_eq!(
        judge(&steady(&host, &maze), default_limits())
            .await
            .outcome
            .unwrap()
            .reward,
        0.5
    );

    let small = PluginHost::new(HostOptions {
        config: PluginHostConfig {
            max_component_size: 100,
            ..PluginHostConfig::default()
        },
        ..options()
    })
    .unwrap();
    let too_large = PluginError::TooLarge {
        size: good.len(),
        limit: 100,
    };
    assert_eq!(refusal(&small, &good, &[]), too_large);
    still_serves(&host).await;
}

#[tokio::test]
async fn case_23_grants_are_bound_to_the_digest_not_the_name() {
    let host = PluginHost::new(HostOptions {
        state: Some(std::sync::Arc::new(super::identity::Keys::default())),
        ..options()
    })
    .unwrap();
    let build = |reward: &str| Guest::reward(reward).with_state();
    let (first, second) = (build("0.5").wasm(), build("0.75").wasm());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("grants.toml");
    let mut book = GrantEditor::open(&path).unwrap();
    let entry = GrantEntry {
        plugin: "keeper".into(),
        at_ms: 1,
        wants: Vec::new(),
        grants: grants(&["state"]),
    };
    book.write(&digest(&first), entry).unwrap();

    let book = GrantFile::open(&path).unwrap();
    let load = |bytes: &[u8]| {
        host.load(
            "keeper",
            bytes,
            &book.grants(&digest(bytes)),
            Profile::default(),
        )
    };
    let kept = load(&first).unwrap();
    let error = load(&second).unwrap_err();
    assert!(
        matches!(&error, PluginError::NotGranted { digest: of, .. } if *of == digest(&second)),
        "{error}"
    );
    // The first one and its grants are listed and still work.
    let (before, _) = book.predecessor("keeper", &digest(&second)).unwrap();
    assert_eq!(before, digest(&first));
    assert_eq!(
        judge(&kept, default_limits()).await.outcome.unwrap().reward,
        0.5
    );
    still_serves(&host).await;
}

/// A host without machines rejects a component that imports `sandbox`, granted or not. What forks, ignores signals or
/// fills a disk in a machine is tested by `host/sandbox`.
#[tokio::test]
async fn case_29_sandbox_imports_are_rejected_where_there_are_no_machines() {
    let host = host();
    let world = sandboxed().wasm();
    assert!(matches!(
        refusal(&host, &world, &[]),
        PluginError::NotGranted { .. }
    ));
    let none = refusal(&host, &world, &["sandbox"]);
    assert!(
        matches!(
            none,
            PluginError::NotAvailable {
                capability: Capability::Sandbox,
                ..
            }
        ),
        "{none}"
    );
    let outside = PluginError::OutsideWorld {
        capability: Capability::Sandbox,
        world: "judge-plugin",
    };
    let mut judge = Guest::reward("0");
    judge = judge.calling(
        "clawhost:plugin/sandbox@0.1.2",
        "restore",
        "$restore (param i32 i32 i32)",
    );
    assert_eq!(refusal(&host, &judge.wasm(), &["sandbox"]), outside);
    still_serves(&host).await;
}
