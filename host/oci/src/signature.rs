//! minisign signatures over a component's bytes.
//!
//! Signatures of minisign's old format, over the bytes themselves instead of their hash, are not accepted.

use minisign_verify::{Error, PublicKey, Signature};

use crate::annotation::file_text;
use crate::error::OciError;

/// The annotation of the manifest that has the component's `.minisig` file, in base64.
pub(crate) const ANNOTATION: &str = "io.clawhost.minisign";

/// Checks that `signature` is one of the component, by one of the keys.
pub(crate) fn verify(keys: &[String], signature: &str, component: &[u8]) -> Result<(), OciError> {
    let invalid = |reason: String| OciError::Signature { reason };
    let signature = Signature::decode(&file_text(ANNOTATION, signature)?).map_err(|error| {
        invalid(format!(
            "the annotation {ANNOTATION} is not a .minisig file ({error})"
        ))
    })?;
    let mut reason = "it is by a key that is not trusted".to_owned();
    for key in keys {
        let key = PublicKey::from_base64(key).map_err(|_| OciError::Key { key: key.clone() })?;
        match key.verify(component, &signature, false) {
            Ok(()) => return Ok(()),
            Err(Error::UnexpectedKeyId) => {}
            Err(error) => reason = format!("it does not match the component ({error})"),
        }
    }
    Err(invalid(reason))
}
