//! How often a repeated promise is tried.

/// Set to run every repeated promise in full, as a nightly run does.
const WHOLE: &str = "CLAWHOST_NIGHTLY";

/// Number of repetitions: `whole` when the environment has `CLAWHOST_NIGHTLY`, else `short`.
pub fn repeats(short: u64, whole: u64) -> u64 {
    if std::env::var_os(WHOLE).is_some() {
        whole
    } else {
        short
    }
}
