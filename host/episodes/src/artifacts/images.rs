//! Images in the directory of an episode: what is kept of messages, and which names may be shown.

/// Bytes of an image that is kept.
const MAX_BYTES: usize = 8 << 20;
/// Images of messages that are kept of an episode.
const MAX_IMAGES: u32 = 500;
/// Beginning of the name of a display's screenshot; a number of at least three digits and `.png` follow.
pub(super) const SCREENSHOT: &str = "screenshot-";

/// The name of the file for image `number`, from 1, of an episode's messages; none if it is not kept. Its first bytes decide
/// about its type: the media type is a claim of the environment.
pub(super) fn name(number: u32, data: &[u8]) -> Option<String> {
    let kind = kind(data)?;
    (number <= MAX_IMAGES && data.len() <= MAX_BYTES).then(|| format!("{number:04}.{kind}"))
}

/// The name of a display's screenshot, as `clawhost-plugins` stores it.
pub(super) fn screenshot(number: u32) -> String {
    format!("{SCREENSHOT}{number:03}.png")
}

/// Whether a file of that name is an image that was stored here. No other name is shown, as names may come from a transcript.
pub(super) fn is_name(name: &str) -> bool {
    let Some((stem, kind)) = name.split_once('.') else {
        return false;
    };
    let number = stem.strip_prefix(SCREENSHOT).unwrap_or(stem);
    matches!(kind, "png" | "jpg" | "webp")
        && (3..=10).contains(&number.len())
        && number.bytes().all(|byte| byte.is_ascii_digit())
}

fn kind(data: &[u8]) -> Option<&'static str> {
    if data.starts_with(b"\x89PNG\r\n\x1a\n") {
        Some("png")
    } else if data.starts_with(b"\xff\xd8\xff") {
        Some("jpg")
    } else if data.starts_with(b"RIFF") && data.get(8..12) == Some(b"WEBP") {
        Some("webp")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_decide_what_is_kept() {
        assert_eq!(name(1, b"\x89PNG\r\n\x1a\nx").unwrap(), "0001.png");
        assert_eq!(name(2, b"\xff\xd8\xff\xe0").unwrap(), "0002.jpg");
        assert_eq!(name(3, b"RIFF\0\0\0\0WEBPx").unwrap(), "0003.webp");
        assert_eq!(name(1, b"<svg onload='x'>"), None);
        assert_eq!(name(1, b"RIFF"), None);
        assert_eq!(name(MAX_IMAGES + 1, b"\xff\xd8\xff"), None);
    }

    #[test]
    fn only_names_that_are_made_here_are_shown() {
        assert!(is_name(&screenshot(1)) && is_name(&screenshot(1234)));
        assert!(is_name("0001.jpg"));
        for other in [
            "../0001.png",
            "0001.svg",
            "0001",
            "a.png",
            "screenshot-.png",
            "0001.png/x",
            "http://a/001.png",
        ] {
            assert!(!is_name(other), "{other}");
        }
    }
}
