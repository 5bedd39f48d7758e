//! `oci://REGISTRY/NAME@sha256:DIGEST` in place of a plugin's file: pulled once, then the same as a file.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, Uri};
use clawhost_plugins::{digest, embedded_component};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::server::Program;

fn component() -> &'static [u8] {
    embedded_component("judge-next-state").unwrap()
}

/// A registry with [`component`] as `me/polite:1.0`; ends with its runtime. Returns the reference without tag and digest,
/// and the digest of the manifest.
fn registry(runtime: &Runtime) -> (String, String) {
    let layer = format!("sha256:{}", digest(component()));
    let manifest = json!({
        "schemaVersion": 2,
        "layers": [{"mediaType": "application/wasm", "digest": layer, "size": component().len()}],
    });
    let manifest = manifest.to_string().into_bytes();
    let pinned = format!("sha256:{}", digest(&manifest));
    let served = Arc::new(BTreeMap::from([
        ("/v2/me/polite/manifests/1.0".to_owned(), manifest.clone()),
        (format!("/v2/me/polite/manifests/{pinned}"), manifest),
        (format!("/v2/me/polite/blobs/{layer}"), component().to_vec()),
    ]));
    let app = Router::new().fallback(async move |uri: Uri| {
        let found = served.get(uri.path()).cloned();
        found.ok_or(StatusCode::NOT_FOUND)
    });
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
    let listener = listener.unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(async move { axum::serve(listener, app).await });
    (format!("oci://{address}/me/polite"), pinned)
}

fn command(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_clawhost"));
    command.current_dir(home).env_clear().env("HOME", home);
    command
}

fn clawhost(home: &Path, arguments: &[&str]) -> Output {
    command(home).args(arguments).output().unwrap()
}

fn json_of(output: &Output) -> Value {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_plugin_from_a_registry_is_used_like_a_file_also_without_the_registry() {
    let home = TempDir::new().unwrap();
    let home = home.path();
    let network = Runtime::new().unwrap();
    let (name, pinned) = registry(&network);
    let reference = format!("{name}@{pinned}");

    let tagged = clawhost(home, &["plugin", "inspect", &format!("{name}:1.0")]);
    assert_eq!(tagged.status.code(), Some(1));
    let stderr = String::from_utf8(tagged.stderr).unwrap();
    assert!(stderr.contains(&format!("pass {reference}")), "{stderr}");

    let inspected = json_of(&clawhost(
        home,
        &["plugin", "inspect", &reference, "--json"],
    ));
    std::fs::write(home.join("polite.wasm"), component()).unwrap();
    let file = ["plugin", "inspect", "polite.wasm", "--json"];
    assert_eq!(inspected, json_of(&clawhost(home, &file)));

    network.shutdown_timeout(Duration::from_secs(10));
    let granted = json_of(&clawhost(
        home,
        &["plugin", "grant", &reference, "state", "--json"],
    ));
    assert_eq!(granted["plugin"], "polite");
    assert_eq!(granted["sha256"], digest(component()));
    // A key that is configured later applies to what was pulled before.
    let keys =
        r#"plugins.oci.trusted_keys=["RWRjbGF3dGVzdIqI4910CfGV/VLbLTy6XXLKZwm/HZQSG/N0iAG0D29c"]"#;
    let unsigned = clawhost(home, &["plugin", "inspect", &reference, "--set", keys]);
    let stderr = String::from_utf8(unsigned.stderr).unwrap();
    assert!(stderr.contains("it is not signed"), "{stderr}");
    let other = format!("{name}@sha256:{}", "0".repeat(64));
    let missing = clawhost(home, &["plugin", "inspect", &other]);
    let stderr = String::from_utf8(missing.stderr).unwrap();
    assert!(stderr.contains("cannot reach 127.0.0.1:"), "{stderr}");

    let (_program, url) = Program::serve(command(home).args([
        "run",
        "--no-train",
        "--port",
        "0",
        "--plugin",
        &reference,
    ]));
    let url = format!("{url}/plugins/reload");
    let status: Value = Runtime::new().unwrap().block_on(async {
        let client = clawhost_http::client().build().unwrap();
        let request = client.post(&url).json(&Value::Null);
        request.send().await.unwrap().json().await.unwrap()
    });
    // Its registry is gone, which is no reason to reject it.
    let plugin = &status["data"][0];
    assert_eq!(plugin["name"], "polite", "{status}");
    assert_eq!(plugin["digest"], digest(component()), "{status}");
    assert_eq!(plugin["granted"], json!(["state"]), "{status}");
    assert_eq!(plugin["refused"], Value::Null, "{status}");
}
