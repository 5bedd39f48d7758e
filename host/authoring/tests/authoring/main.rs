//! The plugin author's tools, on real folders.

mod first_party;
mod scaffolding;
