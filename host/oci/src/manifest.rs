//! The manifest of a component: an OCI image manifest with one layer of the type `application/wasm`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::digest::Digest;
use crate::error::OciError;

/// Media types of manifests that are requested.
pub(crate) const MEDIA_TYPES: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
     application/vnd.docker.distribution.manifest.v2+json";
/// Media type of the component's layer.
const COMPONENT: &str = "application/wasm";
/// Schema version of manifests with layers by digest.
const SCHEMA: u64 = 2;

/// What a manifest says about its component.
#[derive(Debug)]
pub(crate) struct Manifest {
    pub(crate) component: Digest,
    pub(crate) size: u64,
    pub(crate) annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ImageManifest {
    schema_version: u64,
    #[serde(default)]
    layers: Vec<Descriptor>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    /// An index has these in place of layers.
    manifests: Option<Vec<IgnoredAny>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    media_type: String,
    digest: String,
    size: u64,
}

impl Manifest {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, OciError> {
        let invalid = |reason: String| OciError::Manifest { reason };
        let manifest: ImageManifest =
            serde_json::from_slice(bytes).map_err(|error| invalid(error.to_string()))?;
        if let Some(manifests) = &manifest.manifests {
            return Err(invalid(format!(
                "it is an index of {} manifests, one of which has to be named by its own digest",
                manifests.len()
            )));
        }
        if manifest.schema_version != SCHEMA {
            let version = manifest.schema_version;
            return Err(invalid(format!("its schema version is {version}, not 2")));
        }
        let is_component = |layer: &&Descriptor| layer.media_type == COMPONENT;
        let mut components = manifest.layers.iter().filter(is_component);
        let (Some(layer), None) = (components.next(), components.next()) else {
            let count = manifest.layers.iter().filter(is_component).count();
            return Err(invalid(format!(
                "it has {count} layers of the type {COMPONENT}, not one"
            )));
        };
        let digest = Digest::parse(&layer.digest)
            .ok_or_else(|| invalid("the digest of its layer is not a sha256".to_owned()))?;
        Ok(Self {
            component: digest,
            size: layer.size,
            annotations: manifest.annotations,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn exactly_one_layer_is_the_component() {
        let layer = |media_type: &str| {
            let digest = Digest::of(b"c").to_string();
            json!({"mediaType": media_type, "digest": digest, "size": 1})
        };
        let parse = |layers: serde_json::Value| {
            let manifest = json!({"schemaVersion": 2, "layers": layers});
            Manifest::parse(manifest.to_string().as_bytes())
        };
        let wasm = layer(COMPONENT);
        let found = parse(json!([layer("text/plain"), wasm])).unwrap();
        assert_eq!((found.component, found.size), (Digest::of(b"c"), 1));
        for (layers, reason) in [
            (json!([]), "0 layers"),
            (json!([wasm, wasm]), "2 layers"),
            (
                json!([layer("application/vnd.docker.image.rootfs.diff.tar.gzip")]),
                "0 layers",
            ),
            (
                json!([{"mediaType": COMPONENT, "digest": "md5:1", "size": 1}]),
                "not a sha256",
            ),
            (
                json!([{"mediaType": COMPONENT, "digest": "x", "size": -1}]),
                "size",
            ),
        ] {
            let error = parse(layers).unwrap_err().to_string();
            let size = reason == "size" && error.contains("-1");
            assert!(size || error.contains(reason), "{error}");
        }
        let index = br#"{"schemaVersion": 2, "manifests": [{}, {}]}"#;
        let error = Manifest::parse(index).unwrap_err().to_string();
        assert!(error.contains("an index of 2 manifests"), "{error}");
    }
}
