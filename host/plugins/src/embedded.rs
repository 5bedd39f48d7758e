//! First-party components, as checked in under `plugins/artifacts`.
//!
//! `cargo xtask components --check` proves that they are what their sources give.

const JUDGE_NEXT_STATE: &[u8] = include_bytes!("../../../plugins/artifacts/judge-next-state.wasm");
const JUDGE_MINIMAL: &[u8] = include_bytes!("../../../plugins/artifacts/judge-minimal.wasm");

/// The bytes of a first-party component: `judge-next-state` judges by what followed a reply,
/// `judge-minimal` is the example of the SDK.
pub fn embedded(name: &str) -> Option<&'static [u8]> {
    match name {
        "judge-next-state" => Some(JUDGE_NEXT_STATE),
        "judge-minimal" => Some(JUDGE_MINIMAL),
        _ => None,
    }
}
