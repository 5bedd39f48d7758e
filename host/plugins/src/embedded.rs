//! First-party components that are built into the program.
//!
//! They come from `plugins/artifacts`; `cargo xtask components --check` verifies that building the sources gives the
//! same bytes.

/// The embedded components, sorted by name. `hint-next-state` extracts hints from the message that followed a response
/// and `judge-next-state` scores by it, `judge-endless` and `judge-minimal` are SDK examples, `loss-ppo-clip` is the
/// PPO clipped loss.
pub const EMBEDDED_COMPONENTS: &[(&str, &[u8])] = &[
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

/// Returns the bytes of a component of [`EMBEDDED_COMPONENTS`].
pub fn embedded_component(name: &str) -> Option<&'static [u8]> {
    EMBEDDED_COMPONENTS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, bytes)| *bytes)
}
