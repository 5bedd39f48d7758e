//! Probing a server before use, and the errors.

use std::time::Duration;

use clawhost_model::LoraSpec;
use clawhost_remote::{LogprobsMode, RemoteConfig, RemoteError};

use crate::server::{FakeServer, Fault, ReturnedLogprobs};

#[test]
fn the_logprobs_mode_is_detected() {
    for (fake, expected) in [
        (FakeServer::vllm(ReturnedLogprobs::Raw), LogprobsMode::Raw),
        (
            FakeServer::vllm(ReturnedLogprobs::Processed),
            LogprobsMode::Processed,
        ),
        (
            FakeServer::sglang(ReturnedLogprobs::TemperatureScaled),
            LogprobsMode::TemperatureScaled,
        ),
        (FakeServer::sglang(ReturnedLogprobs::Raw), LogprobsMode::Raw),
    ] {
        let (_engine, remote) = fake.connect(fake.options());
        assert_eq!(remote.logprobs_mode(), expected);
        assert!(
            remote.logprob_difference() < 1e-4,
            "{}",
            remote.logprob_difference()
        );
    }
}

#[test]
fn servers_without_ids_or_logprobs_are_rejected() {
    let fake = FakeServer::vllm(ReturnedLogprobs::Raw);
    fake.set_fault(Fault::NoIds);
    let error = fake.connect_error(fake.options());
    assert!(matches!(error, RemoteError::NoIds { .. }), "{error}");
    assert!(error.to_string().contains("return_token_ids"), "{error}");
    fake.set_fault(Fault::Garbage);
    let error = fake.connect_error(fake.options()).to_string();
    assert!(error.contains("is malformed"), "{error}");
    for fake in [
        fake,
        FakeServer::sglang(ReturnedLogprobs::TemperatureScaled),
    ] {
        fake.set_fault(Fault::NoLogprobs);
        let error = fake.connect_error(fake.options());
        assert!(matches!(error, RemoteError::NoLogprobs { .. }), "{error}");
    }
}

#[test]
fn a_server_with_other_weights_is_rejected() {
    let fake = FakeServer::with_other_weights();
    let error = fake.connect_error(fake.options());
    let RemoteError::WeightsMismatch { mean, tokens, .. } = &error else {
        panic!("{error}");
    };
    assert!(*mean > 0.5 && *tokens >= 16, "{error}");
    assert!(
        error
            .to_string()
            .contains("engine.remote.max_logprob_difference")
    );
}

#[test]
fn a_server_without_adapters_is_rejected_when_training_needs_them() {
    for fake in [
        FakeServer::vllm(ReturnedLogprobs::Raw),
        FakeServer::sglang(ReturnedLogprobs::TemperatureScaled),
    ] {
        fake.set_fault(Fault::NoAdapters);
        let trains = |options| fake.try_connect(options, Some(LoraSpec::default()));
        let error = trains(fake.options()).unwrap_err();
        assert!(matches!(error, RemoteError::NoAdapters { .. }), "{error}");
        assert!(error.to_string().contains("--enable-lora"), "{error}");
        // Without training the base model can be served.
        fake.connect(fake.options());
        let nowhere = RemoteConfig {
            adapter_dir: None,
            ..fake.options()
        };
        let error = trains(nowhere).unwrap_err().to_string();
        assert!(error.contains("engine.remote.adapter_dir"), "{error}");
        // The probe adapter is removed.
        fake.set_fault(Fault::None);
        trains(fake.options()).unwrap();
        assert_eq!(fake.state.unloaded.lock().unwrap().len(), 1);
        assert_eq!(std::fs::read_dir(fake.adapter_dir()).unwrap().count(), 0);
    }
}

#[test]
fn invalid_and_unreachable_urls_are_reported() {
    let mut fake = FakeServer::vllm(ReturnedLogprobs::Raw);
    fake.stop();
    let error = fake.connect_error(RemoteConfig {
        response_timeout: Duration::from_secs(2),
        ..fake.options()
    });
    assert!(matches!(error, RemoteError::Unusable { .. }), "{error}");
    for (url, part) in [
        ("ftp://127.0.0.1:1", "only http"),
        ("http://127.0.0.1:1/v1", "without a path"),
        ("nowhere", "nowhere"),
    ] {
        let error = fake.connect_error(RemoteConfig {
            url: url.to_owned(),
            ..fake.options()
        });
        assert!(error.to_string().contains(part), "{error}");
    }
}
