//! The demo, the README's first command, reports that the shipped policy learned, for every seed.

use clawhost_tests::{Command, repeats};
use serde_json::Value;
use tempfile::TempDir;

/// Seeds whose trained arm learns within its first twelve conversations come first: early learning must not be a
/// failure.
const FAST: [u64; 4] = [4, 11, 14, 15];

#[test]
fn demo_succeeds_on_every_seed() {
    let others = (1..).filter(|seed| !FAST.contains(seed));
    let seeds = FAST.into_iter().chain(others);
    for seed in seeds.take(repeats(1, 200).try_into().unwrap()) {
        let dir = TempDir::new().unwrap();
        let out = dir.path().join("report.html");
        let seed = seed.to_string();
        let flags = [
            "demo",
            "--json",
            "--seed",
            &seed,
            "--out",
            out.to_str().unwrap(),
        ];
        let ended = Command::new(&flags).run();
        assert_eq!(ended.code, Some(0), "seed {seed}: {ended:?}");
        let result: Value = serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap();
        assert_eq!(result["learned"], true, "seed {seed}: {result}");
    }
}
