//! Any request of a component: refused, or it goes to a granted origin and tells no secret.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| clawhost_plugins::fuzzing::url_policy(bytes));
