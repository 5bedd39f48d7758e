//! Inspection reports the kind and imports of a component without running it.

use super::common::host;
use clawhost_plugins::{Grants, Kind, Profile, embedded_component};

#[test]
fn inspection_reports_kind_version_and_imports() {
    let host = host();
    let inspection = host
        .inspect(embedded_component("judge-next-state").unwrap())
        .unwrap();
    assert_eq!(inspection.kind, Kind::Judge);
    assert_eq!(inspection.contract, "0.1.2");
    assert!(!inspection.wasi);
    assert!(
        inspection
            .capabilities
            .iter()
            .all(|c| c.is_always_granted()),
        "{inspection:?}"
    );
    let judge = embedded_component("judge-minimal").unwrap();
    let plugin = host
        .load("minimal", judge, &Grants::default(), Profile::default())
        .unwrap();
    assert!(
        plugin
            .imports()
            .contains(&"clawhost:plugin/types@0.1.2".to_owned())
    );
    assert_eq!(plugin.digest(), clawhost_plugins::digest(judge));
    assert_eq!(embedded_component("no-such-judge"), None);
}
