//! First-party components, as checked in under `plugins/artifacts`.
//!
//! `cargo xtask components --check` proves that they are what their sources give.

/// The components inside this program, by name, in the order of their names: `judge-minimal` is the
/// example of the SDK, `judge-next-state` judges by what followed a reply.
pub const EMBEDDED: &[(&str, &[u8])] = &[
    (
        "judge-minimal",
        include_bytes!("../../../plugins/artifacts/judge-minimal.wasm"),
    ),
    (
        "judge-next-state",
        include_bytes!("../../../plugins/artifacts/judge-next-state.wasm"),
    ),
];

/// The bytes of a component of [`EMBEDDED`].
pub fn embedded(name: &str) -> Option<&'static [u8]> {
    EMBEDDED
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, bytes)| *bytes)
}
