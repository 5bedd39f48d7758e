//! Any manifest: refused, or it takes away and never gives.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| clawhost_plugins::fuzzing::manifest(bytes));
