//! Files in the annotations of a manifest, in base64: not every tool that pushes escapes the line breaks of a text.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::error::OciError;

/// The text of a file in an annotation's value.
pub(crate) fn file_text(annotation: &'static str, value: &str) -> Result<String, OciError> {
    let bytes = STANDARD.decode(value).ok();
    bytes
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or(OciError::Annotation { annotation })
}
