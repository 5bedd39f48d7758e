//! Any grants file: refused, or read again as written.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| clawhost_plugins::fuzzing::grants_file(bytes));
