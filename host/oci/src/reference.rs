//! References: `oci://REGISTRY/NAME@sha256:DIGEST`.

use std::net::IpAddr;

use crate::digest::Digest;
use crate::error::OciError;

/// The scheme of a reference.
const SCHEME: &str = "oci://";
/// The tag of a reference that has neither tag nor digest.
const DEFAULT_TAG: &str = "latest";
/// Longest repository name and longest tag, of the OCI distribution specification.
const MAX_NAME: usize = 255;
const MAX_TAG: usize = 128;

/// A parsed reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reference {
    /// Host, and port if it is not the default one.
    pub(crate) registry: String,
    /// Name of the repository, without a leading slash.
    pub(crate) repository: String,
    pub(crate) version: Version,
}

/// Which manifest of the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Version {
    Digest(Digest),
    Tag(String),
}

impl Reference {
    /// A tag beside a digest is ignored, as everywhere: the digest decides.
    pub(crate) fn parse(text: &str) -> Result<Self, OciError> {
        let invalid = |reason| OciError::Reference {
            text: text.to_owned(),
            reason,
        };
        let rest = text
            .strip_prefix(SCHEME)
            .ok_or_else(|| invalid("it does not begin with oci://"))?;
        let (name, digest) = match rest.split_once('@') {
            Some((name, digest)) => {
                let digest = Digest::parse(digest).ok_or_else(|| {
                    invalid("the digest is not sha256: and 64 lowercase hexadecimal digits")
                })?;
                (name, Some(digest))
            }
            None => (rest, None),
        };
        let (registry, path) = name
            .split_once('/')
            .ok_or_else(|| invalid("it has no name after the registry"))?;
        if !is_registry(registry) {
            return Err(invalid(
                "the registry is not a host name, or a host name and a port",
            ));
        }
        let (repository, tag) = match path.split_once(':') {
            Some((repository, tag)) => (repository, Some(tag)),
            None => (path, None),
        };
        if !is_repository(repository) {
            return Err(invalid(
                "the name consists of lowercase letters, digits and ._- between slashes",
            ));
        }
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(invalid("the tag is not valid"));
        }
        Ok(Self {
            registry: registry.to_owned(),
            repository: repository.to_owned(),
            version: match digest {
                Some(digest) => Version::Digest(digest),
                None => Version::Tag(tag.unwrap_or(DEFAULT_TAG).to_owned()),
            },
        })
    }

    /// The reference with this digest.
    pub(crate) fn pinned(&self, digest: &Digest) -> String {
        format!("{SCHEME}{}/{}@{digest}", self.registry, self.repository)
    }

    /// Whether the registry is on a loopback address, where encryption protects nothing.
    pub(crate) fn is_loopback(&self) -> bool {
        let (host, _) = split_port(&self.registry);
        let ip = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || ip.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

/// Host and port; the host of an IPv6 address has brackets.
fn split_port(registry: &str) -> (&str, Option<&str>) {
    match registry.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (registry, None),
    }
}

fn is_registry(text: &str) -> bool {
    let (host, port) = split_port(text);
    let ipv6 = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .is_some_and(|host| host.parse::<std::net::Ipv6Addr>().is_ok());
    let name = !host.is_empty()
        && host
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'));
    (ipv6 || name) && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

fn is_repository(text: &str) -> bool {
    let allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-');
    let component = |part: &str| {
        part.bytes().all(allowed) && part.starts_with(|c: char| c.is_ascii_alphanumeric())
    };
    text.len() <= MAX_NAME && text.split('/').all(component)
}

fn is_tag(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=MAX_TAG).contains(&text.len())
        && text.bytes().all(allowed)
        && !text.starts_with(['.', '-'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_takes_precedence_over_a_tag() {
        let digest = Digest::of(b"x");
        let parse = |text: &str| Reference::parse(text).unwrap();
        let pinned = parse(&format!("oci://ghcr.io/me/judge:1.0@{digest}"));
        assert_eq!(
            (pinned.registry.as_str(), pinned.repository.as_str()),
            ("ghcr.io", "me/judge")
        );
        assert_eq!(pinned.version, Version::Digest(digest.clone()));
        assert_eq!(
            pinned.pinned(&digest),
            format!("oci://ghcr.io/me/judge@{digest}")
        );
        assert_eq!(
            parse("oci://localhost:5000/judge").version,
            Version::Tag("latest".to_owned())
        );
        assert_eq!(
            parse("oci://[::1]:5000/a/b_c.d:v1").version,
            Version::Tag("v1".to_owned())
        );
    }

    #[test]
    fn what_would_name_another_resource_is_rejected() {
        for text in [
            "https://ghcr.io/me/judge",
            "oci://ghcr.io",
            "oci:///judge",
            "oci://user@ghcr.io/judge",
            "oci://ghcr.io:x/judge",
            "oci://ghcr.io:99999/judge",
            "oci://[zz]/judge",
            "oci://ghcr.io?/judge",
            "oci://ghcr.io/",
            "oci://ghcr.io/Judge",
            "oci://ghcr.io/a/../b",
            "oci://ghcr.io/a//b",
            "oci://ghcr.io/a%2f",
            "oci://ghcr.io/a?x#y",
            "oci://ghcr.io/a:",
            "oci://ghcr.io/a:b/c",
            "oci://ghcr.io/a@sha256:12",
        ] {
            let error = Reference::parse(text).unwrap_err();
            assert!(matches!(error, OciError::Reference { .. }), "{text}");
        }
    }

    #[test]
    fn loopback_registries_are_recognized_by_their_whole_host() {
        let loopback = |registry: &str| {
            Reference::parse(&format!("oci://{registry}/j"))
                .unwrap()
                .is_loopback()
        };
        for registry in [
            "localhost",
            "localhost:5000",
            "127.0.0.1:80",
            "127.1.2.3",
            "[::1]:9",
        ] {
            assert!(loopback(registry), "{registry}");
        }
        for registry in [
            "localhost.example.com",
            "10.0.0.1",
            "127.0.0.1.nip.io",
            "[::2]",
        ] {
            assert!(!loopback(registry), "{registry}");
        }
    }
}
