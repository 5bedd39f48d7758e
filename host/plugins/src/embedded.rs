//! First-party components, as checked in under `plugins/artifacts`.
//!
//! `cargo xtask components --check` proves that they are what their sources give.

/// The components inside this program, by name, in the order of their names: `hint-next-state` makes hints of
/// what followed a reply and `judge-next-state` judges by it, `judge-endless` and `judge-minimal` are examples
/// of the SDK, `loss-ppo-clip` is the clipped loss.
pub const EMBEDDED: &[(&str, &[u8])] = &[
    (
        "hint-next-state",
        include_bytes!("../../../plugins/artifacts/hint-next-state.wasm"),
    ),
    (
        "judge-endless",
        include_bytes!("../../../plugins/artifacts/judge-endless.wasm"),
    ),
    (
        "judge-minimal",
        include_bytes!("../../../plugins/artifacts/judge-minimal.wasm"),
    ),
    (
        "judge-next-state",
        include_bytes!("../../../plugins/artifacts/judge-next-state.wasm"),
    ),
    (
        "loss-ppo-clip",
        include_bytes!("../../../plugins/artifacts/loss-ppo-clip.wasm"),
    ),
];

/// The bytes of a component of [`EMBEDDED`].
pub fn embedded(name: &str) -> Option<&'static [u8]> {
    EMBEDDED
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, bytes)| *bytes)
}
