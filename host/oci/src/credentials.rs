//! User names and passwords of registries, as `docker login`, `oras login` and `wkg` share them in docker's `config.json`.
//!
//! Only its `auths` are read. Credential helpers are programs, and are not run.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::Deserialize;

use crate::error::OciError;

/// Largest `config.json` that is read.
const MAX_FILE: u64 = 1 << 20;

/// A user name and its password.
pub(crate) struct Credentials {
    pub(crate) user: String,
    pub(crate) password: String,
}

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    /// `user:password` in base64; absent if a credential helper has it.
    auth: Option<String>,
}

/// The credentials of a registry; none if the file does not exist or has none for it.
pub(crate) fn read(path: &Path, registry: &str) -> Result<Option<Credentials>, OciError> {
    let failed = |reason: String| OciError::Credentials {
        path: path.display().to_string(),
        reason,
    };
    let mut text = String::new();
    match File::open(path) {
        Ok(file) => file
            .take(MAX_FILE)
            .read_to_string(&mut text)
            .map_err(|error| failed(error.to_string()))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error.to_string())),
    };
    // The parser's message would quote the file.
    let config: DockerConfig = serde_json::from_str(&text)
        .map_err(|error| failed(format!("line {} is not valid", error.line())))?;
    let url = format!("https://{registry}");
    let hub = (registry == "docker.io").then_some("https://index.docker.io/v1/");
    let keys = [Some(registry), Some(url.as_str()), hub];
    let auth = keys
        .into_iter()
        .flatten()
        .find_map(|key| config.auths.get(key)?.auth.as_ref());
    let Some(auth) = auth.filter(|auth| !auth.is_empty()) else {
        return Ok(None);
    };
    // docker pads, others do not.
    let decoded = STANDARD_NO_PAD
        .decode(auth.trim_end_matches('='))
        .ok()
        .and_then(|auth| {
            let text = String::from_utf8(auth).ok()?;
            let (user, password) = text.split_once(':')?;
            Some(Credentials {
                user: user.to_owned(),
                // docker pads passwords with zeros.
                password: password.trim_end_matches('\0').to_owned(),
            })
        });
    decoded.map(Some).ok_or_else(|| {
        failed(format!(
            "auths.{registry}.auth is not user:password in base64"
        ))
    })
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    #[test]
    fn credentials_are_found_under_the_names_that_docker_uses() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        let found = |registry: &str| {
            read(&path, registry).map(|found| found.map(|one| (one.user, one.password)))
        };
        assert!(found("ghcr.io").unwrap().is_none());
        let auth = STANDARD.encode("ada:pass:word");
        let text = format!(
            r#"{{"auths": {{"ghcr.io": {{"auth": "{auth}"}}, "https://a.example": {{"auth": "{auth}"}},
                "https://index.docker.io/v1/": {{"auth": "{auth}"}}, "helper.example": {{}},
                "bad.example": {{"auth": "{secret}"}}}}, "credsStore": "desktop"}}"#,
            secret = STANDARD.encode("hunter2")
        );
        std::fs::write(&path, text).unwrap();
        let ada = Some(("ada".to_owned(), "pass:word".to_owned()));
        for registry in ["ghcr.io", "a.example", "docker.io"] {
            assert_eq!(found(registry).unwrap(), ada, "{registry}");
        }
        for registry in ["helper.example", "ghcr.io.example", "index.docker.io"] {
            assert_eq!(found(registry).unwrap(), None, "{registry}");
        }
        let error = found("bad.example").unwrap_err().to_string();
        assert!(
            error.contains("bad.example") && !error.contains("hunter2"),
            "{error}"
        );
        std::fs::write(&path, "{\"auths\":\n hunter2").unwrap();
        let error = found("ghcr.io").unwrap_err().to_string();
        assert!(
            error.contains("line 2") && !error.contains("hunter2"),
            "{error}"
        );
    }
}
