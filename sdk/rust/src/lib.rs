//! What a plugin author imports: judges in Rust
