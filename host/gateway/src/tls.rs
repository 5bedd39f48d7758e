//! TLS configuration from PEM files.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

/// A TLS certificate and its private key. Clones share the configuration.
#[derive(Clone)]
pub struct Tls(Arc<ServerConfig>);

/// An invalid TLS configuration.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read the TLS {what} {}: {source}", path.display())]
    Unreadable {
        /// Certificate or key.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// The certificate file is not PEM, or contains no certificate.
    #[error("{} contains no certificate in PEM format; --tls-cert expects the server's certificate, followed by those of its issuers{}", path.display(), because(detail))]
    NoCertificate {
        /// The file.
        path: PathBuf,
        /// The parse error; empty if the file contains no PEM section.
        detail: String,
    },
    /// The key file is not PEM, or contains no private key.
    #[error("{} contains no private key in PEM format; --tls-key expects an unencrypted key (`openssl pkey -in KEY -out PLAIN` decrypts one){}", path.display(), because(detail))]
    NoKey {
        /// The file.
        path: PathBuf,
        /// The parse error; empty if the file contains no PEM section.
        detail: String,
    },
    /// The certificate and the key do not match, or one is unsupported.
    #[error("the TLS certificate {} and the key {} cannot be used together: {source}; use the key that the certificate was issued for", cert.display(), key.display())]
    Unusable {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// The error.
        source: rustls::Error,
    },
}

fn because(detail: &str) -> String {
    if detail.is_empty() {
        String::new()
    } else {
        format!(": {detail}")
    }
}

impl Tls {
    /// Loads a certificate chain, the server's certificate first, and its private key (PKCS#8, PKCS#1 or SEC1).
    ///
    /// # Errors
    /// A file cannot be read or has other contents, or the key does not match the certificate.
    pub fn load(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        let chain = CertificateDer::pem_file_iter(cert)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .and_then(|chain| match chain.is_empty() {
                true => Err(pem::Error::NoItemsFound),
                false => Ok(chain),
            })
            .map_err(|error| {
                let path = cert.to_owned();
                match detail(error) {
                    Ok(detail) => TlsError::NoCertificate { path, detail },
                    Err(source) => TlsError::Unreadable {
                        what: "certificate",
                        path,
                        source,
                    },
                }
            })?;
        let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| {
            let path = key.to_owned();
            match detail(error) {
                Ok(detail) => TlsError::NoKey { path, detail },
                Err(source) => TlsError::Unreadable {
                    what: "key",
                    path,
                    source,
                },
            }
        })?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| {
                builder
                    .with_no_client_auth()
                    .with_single_cert(chain, secret)
            });
        let mut config = config.map_err(|source| TlsError::Unusable {
            cert: cert.to_owned(),
            key: key.to_owned(),
            source,
        })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(Arc::new(config)))
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.0.clone())
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// The parse error of a file, or the I/O error of reading it.
fn detail(error: pem::Error) -> Result<String, std::io::Error> {
    match error {
        pem::Error::Io(error) => Err(error),
        pem::Error::NoItemsFound => Ok(String::new()),
        other => Ok(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[test]
    fn unusable_files_are_named_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (cert, key) = pair();
        let (_, other) = pair();
        let (cert, key, other) = (
            file("cert.pem", &cert),
            file("key.pem", &key),
            file("other.pem", &other),
        );
        assert!(Tls::load(&cert, &key).is_ok());
        let missing = dir.path().join("missing.pem");
        let empty = file("empty.pem", "");
        let broken = file(
            "broken.pem",
            "-----BEGIN CERTIFICATE-----\n%%%\n-----END CERTIFICATE-----\n",
        );
        for (cert, key, parts) in [
            (
                &missing,
                &key,
                ["missing.pem", "cannot read the TLS certificate"],
            ),
            (&cert, &missing, ["missing.pem", "cannot read the TLS key"]),
            (&key, &key, ["key.pem", "no certificate"]),
            (&empty, &key, ["empty.pem", "no certificate"]),
            (&broken, &key, ["broken.pem", "no certificate"]),
            (&cert, &cert, ["cert.pem", "no private key"]),
            (&cert, &other, ["other.pem", "cannot be used together"]),
        ] {
            let error = Tls::load(cert, key).unwrap_err().to_string();
            for part in parts {
                assert!(error.contains(part), "{part} is missing in: {error}");
            }
        }
    }
}
