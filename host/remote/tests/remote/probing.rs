//! What is found out about a server before it is used, and what it is refused for.

use std::time::Duration;

use clawhost_policy::LoraSpec;
use clawhost_remote::{RemoteError, RemoteOptions, Reports};

use crate::server::{Fake, Fault, Returns};

#[test]
fn what_a_server_returns_is_found_out_by_asking_it() {
    for (fake, expected) in [
        (Fake::vllm(Returns::Model), Reports::Model),
        (Fake::vllm(Returns::Drawn), Reports::Drawn),
        (Fake::sglang(Returns::Tempered), Reports::Tempered),
        (Fake::sglang(Returns::Model), Reports::Model),
    ] {
        let (_engine, remote) = fake.behind(fake.options());
        assert_eq!(remote.reports(), expected);
        assert!(remote.distance() < 1e-4, "{}", remote.distance());
    }
}

#[test]
fn a_server_that_leaves_out_what_is_recorded_is_refused() {
    let fake = Fake::vllm(Returns::Model);
    fake.fault(Fault::NoIds);
    let error = fake.refused(fake.options());
    assert!(matches!(error, RemoteError::NoIds { .. }), "{error}");
    assert!(error.to_string().contains("return_token_ids"), "{error}");
    fake.fault(Fault::Garbage);
    let error = fake.refused(fake.options()).to_string();
    assert!(error.contains("cannot be read"), "{error}");
    for fake in [fake, Fake::sglang(Returns::Tempered)] {
        fake.fault(Fault::NoLogprobs);
        let error = fake.refused(fake.options());
        assert!(matches!(error, RemoteError::NoLogprobs { .. }), "{error}");
    }
}

#[test]
fn a_server_with_other_weights_is_refused() {
    let fake = Fake::stranger();
    let error = fake.refused(fake.options());
    let RemoteError::OtherWeights { mean, tokens, .. } = &error else {
        panic!("{error}");
    };
    assert!(*mean > 0.5 && *tokens >= 16, "{error}");
    assert!(error.to_string().contains("engine.remote.agreement"));
}

#[test]
fn a_server_that_takes_no_adapters_is_refused_where_they_are_needed() {
    for fake in [Fake::vllm(Returns::Model), Fake::sglang(Returns::Tempered)] {
        fake.fault(Fault::NoAdapters);
        let trains = RemoteOptions {
            lora: Some(LoraSpec::default()),
            ..fake.options()
        };
        let error = fake.refused(trains.clone());
        assert!(matches!(error, RemoteError::NoAdapters { .. }), "{error}");
        assert!(error.to_string().contains("--enable-lora"), "{error}");
        // Without training it may serve the base.
        fake.behind(fake.options());
        let nowhere = RemoteOptions {
            adapters: None,
            ..trains.clone()
        };
        let error = fake.refused(nowhere).to_string();
        assert!(error.contains("engine.remote.adapters"), "{error}");
        // What was tried with is not left behind.
        fake.fault(Fault::None);
        fake.behind(trains);
        assert_eq!(fake.inside.unloaded.lock().unwrap().len(), 1);
        assert_eq!(std::fs::read_dir(fake.written()).unwrap().count(), 0);
    }
}

#[test]
fn an_address_that_cannot_be_used_is_named() {
    let mut fake = Fake::vllm(Returns::Model);
    fake.down();
    let error = fake.refused(RemoteOptions {
        accept: Duration::from_secs(2),
        ..fake.options()
    });
    assert!(matches!(error, RemoteError::Trouble { .. }), "{error}");
    for (url, part) in [
        ("https://127.0.0.1:1", "only http"),
        ("http://127.0.0.1:1/v1", "without a path"),
        ("nowhere", "nowhere"),
    ] {
        let error = fake.refused(RemoteOptions {
            url: url.to_owned(),
            ..fake.options()
        });
        assert!(error.to_string().contains(part), "{error}");
    }
}
