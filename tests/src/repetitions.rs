//! Number of repetitions of long-running tests.

/// Environment variable that selects the full number of repetitions, as in nightly runs.
const NIGHTLY_VARIABLE: &str = "CLAWHOST_NIGHTLY";

/// Number of repetitions: `full` if `CLAWHOST_NIGHTLY` is set, else `short`.
pub fn repeats(short: u64, full: u64) -> u64 {
    if std::env::var_os(NIGHTLY_VARIABLE).is_some() {
        full
    } else {
        short
    }
}
