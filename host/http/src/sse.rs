//! Server-sent events in a stream of bytes.
//!
//! The servers send one line per event. Lines are bounded, so that a broken server cannot exhaust the memory.

/// Maximum line length.
const MAX_LINE_BYTES: usize = 4 << 20;

/// Yields the payload of each `data:` line; buffers an incomplete line.
#[derive(Debug, Default)]
pub struct SseDecoder {
    buffer: Vec<u8>,
}

impl SseDecoder {
    /// Adds bytes and returns the complete payloads.
    ///
    /// # Errors
    /// A line that is too long, or not UTF-8.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<String>, &'static str> {
        self.buffer.extend_from_slice(bytes);
        let mut payloads = Vec::new();
        while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
            let rest = self.buffer.split_off(end + 1);
            let line = std::mem::replace(&mut self.buffer, rest);
            let line = std::str::from_utf8(&line).map_err(|_| "a line is not UTF-8")?;
            if let Some(payload) = line.trim_end().strip_prefix("data:") {
                payloads.push(payload.trim_start().to_owned());
            }
        }
        if self.buffer.len() > MAX_LINE_BYTES {
            return Err("a line is longer than 4 MiB");
        }
        Ok(payloads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_complete_for_any_split_of_the_stream() {
        let stream = "data: {\"a\": \"é\"}\r\n\r\n: ping\nevent: x\ndata:[DONE]\n\n".as_bytes();
        for cut in 0..stream.len() {
            let mut decoder = SseDecoder::default();
            let (one, other) = stream.split_at(cut);
            let mut all = decoder.push(one).unwrap();
            all.extend(decoder.push(other).unwrap());
            assert_eq!(all, ["{\"a\": \"é\"}", "[DONE]"]);
        }
    }

    #[test]
    fn overlong_and_invalid_lines_are_rejected() {
        let mut decoder = SseDecoder::default();
        assert!(
            decoder
                .push(&vec![b'x'; MAX_LINE_BYTES])
                .unwrap()
                .is_empty()
        );
        assert!(decoder.push(b"x").is_err());
        assert!(SseDecoder::default().push(b"data: \xff\n").is_err());
    }
}
