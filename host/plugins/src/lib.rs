//! The WebAssembly component host: load, grants, limits, receipts
