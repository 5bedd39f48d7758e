//! Why a component was not pulled, each with what to do about it.

/// A component could not be pulled, or was rejected.
#[derive(Debug, thiserror::Error)]
pub enum OciError {
    /// The text is not a reference.
    #[error(
        "{text} is not a reference to a component: {reason}; write oci://REGISTRY/NAME@sha256:DIGEST"
    )]
    Reference {
        /// The text.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The reference has no digest, so what it means can change.
    #[error(
        "it names no digest, so what it means can change; to use what the tag {tag} is now, pass {pinned}"
    )]
    Unpinned {
        /// The tag, `latest` if the reference has none.
        tag: String,
        /// The reference with the digest that the registry has under this tag.
        pinned: String,
    },
    /// An annotation does not have a file.
    #[error(
        "its annotation {annotation} is not the base64 of a text; push with --annotation \"{annotation}=$(base64 -w0 FILE)\""
    )]
    Annotation {
        /// Name of the annotation.
        annotation: &'static str,
    },
    /// The registry, or the host of a redirect or token service, cannot be reached.
    #[error(
        "cannot reach {host}: {cause}; check the name and the network, the registry is needed until the component is cached"
    )]
    Unreachable {
        /// Host and port.
        host: String,
        /// The innermost cause.
        cause: String,
    },
    /// The registry does not have it.
    #[error(
        "{registry} does not have {what}; check the name and the digest or tag, it may have been deleted"
    )]
    NotFound {
        /// The registry.
        registry: String,
        /// What was requested.
        what: String,
    },
    /// The registry requires a login, or rejected it.
    #[error(
        "{registry} denies access: {reason}; log in with `docker login {registry}` or `oras login {registry}` (credential helpers are not used)"
    )]
    Denied {
        /// The registry.
        registry: String,
        /// Whether credentials were sent, or what the registry says.
        reason: String,
    },
    /// Another response than a success.
    #[error(
        "{host} answers with status {status}: {message}; try again later, or check the registry"
    )]
    Status {
        /// Host and port.
        host: String,
        /// HTTP status.
        status: u16,
        /// The message of the body.
        message: String,
    },
    /// A redirect or token service that would not be encrypted.
    #[error(
        "{registry} refers to {url}, which is not https; use a registry that refers to https URLs only"
    )]
    Insecure {
        /// The registry.
        registry: String,
        /// The URL.
        url: String,
    },
    /// More redirects than allowed.
    #[error("{registry} redirects more than {limit} times; check the registry")]
    Redirects {
        /// The registry.
        registry: String,
        /// The limit.
        limit: usize,
    },
    /// The registry does not follow the protocol.
    #[error("{registry} does not answer like an OCI registry: {reason}; check its name")]
    Protocol {
        /// The registry.
        registry: String,
        /// What is wrong.
        reason: String,
    },
    /// The component is larger than components may be.
    #[error(
        "the component has {size} bytes, the limit is {limit}; raise plugins.host.max_component_size if it is the one you want"
    )]
    TooLarge {
        /// Its size according to the manifest.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// A response that is larger than the registry or the protocol allows.
    #[error("{what} has more than {limit} bytes; check that the reference names a component")]
    Oversized {
        /// What was read.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// The bytes are not those of the digest.
    #[error(
        "the registry sent {what} with the digest {found} in place of {expected}; do not use this registry until you know why"
    )]
    Digest {
        /// What was read.
        what: &'static str,
        /// The digest in the reference or in the manifest.
        expected: String,
        /// The digest of the bytes.
        found: String,
    },
    /// The manifest does not describe a component.
    #[error(
        "the manifest is not that of a component: {reason}; push it with `wkg oci push` or `oras push NAME:TAG FILE.wasm:application/wasm`"
    )]
    Manifest {
        /// What is wrong.
        reason: String,
    },
    /// A key is required, and there is no signature.
    #[error(
        "it is not signed, and plugins.oci.trusted_keys requires a signature; ask its publisher to sign it with minisign and to push it with the annotation {annotation}"
    )]
    Unsigned {
        /// The annotation with the signature.
        annotation: &'static str,
    },
    /// There is a signature, but not a valid one by a trusted key.
    #[error(
        "its signature is not valid: {reason}; add the publisher's key to plugins.oci.trusted_keys if you trust it, else do not use the component"
    )]
    Signature {
        /// What is wrong.
        reason: String,
    },
    /// A configured key cannot be parsed.
    #[error(
        "plugins.oci.trusted_keys has {key}, which is not a minisign public key; copy the second line of minisign.pub"
    )]
    Key {
        /// The configured text.
        key: String,
    },
    /// The credentials cannot be read.
    #[error("cannot read the credentials in {path}: {reason}; repair the file, or log in again")]
    Credentials {
        /// The file.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// The HTTP client or its runtime cannot be started.
    #[error("cannot start an HTTP client: {0}; check the limits on threads and files")]
    Client(String),
}
