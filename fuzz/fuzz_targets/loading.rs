//! Any bytes as a component: refused, or its calls end.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| clawhost_plugins::fuzzing::loading(bytes));
