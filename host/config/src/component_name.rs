//! The name of a component, by which it is configured: from its file, or from its reference to a registry.

use std::path::Path;

/// The scheme of references to registries.
const OCI: &str = "oci://";

/// The text of a path that is a reference to an OCI registry, such as `oci://ghcr.io/me/judge@sha256:…`; none if it names a
/// file.
pub fn oci_reference(path: &Path) -> Option<&str> {
    path.to_str().filter(|text| text.starts_with(OCI))
}

/// The name of a component: the file name without its extension, or the last part of the name in the registry.
pub fn component_name(path: &Path) -> String {
    let Some(reference) = oci_reference(path) else {
        let stem = path.file_stem().unwrap_or(path.as_os_str());
        return stem.to_string_lossy().into_owned();
    };
    let name = reference
        .split_once('@')
        .map_or(reference, |(name, _)| name);
    let last = name.rsplit_once('/').map_or(name, |(_, last)| last);
    last.split_once(':')
        .map_or(last, |(last, _)| last)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_extensions_are_not_part_of_the_name() {
        for (path, name) in [
            ("plugins/judge.wasm", "judge"),
            ("judge.v2.wasm", "judge.v2"),
            ("..", ".."),
            ("oci://ghcr.io/me/strict-judge@sha256:ab", "strict-judge"),
            ("oci://ghcr.io/me/judge.v2:1.0@sha256:ab", "judge.v2"),
            ("oci://localhost:5000/judge:latest", "judge"),
            ("oci://localhost:5000/judge", "judge"),
        ] {
            assert_eq!(component_name(Path::new(path)), name, "{path}");
        }
    }
}
