//! Any result of a component: refused, or sound.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| clawhost_plugins::fuzzing::results(bytes));
