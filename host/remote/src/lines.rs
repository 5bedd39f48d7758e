//! Server-sent events out of bytes as they come: the payload of each `data:` line.
//!
//! An event is one line at both kinds of server, so lines are all that is looked at. A line is bounded: a server that
//! sends garbage must not fill the memory.

/// Longest line.
const LONGEST: usize = 4 << 20;

/// Bytes that are not a whole line yet.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    held: Vec<u8>,
}

impl Lines {
    /// Takes bytes in and gives the payloads that are whole now.
    ///
    /// # Errors
    /// A line without an end, or one that is not UTF-8.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<Vec<String>, &'static str> {
        self.held.extend_from_slice(bytes);
        let mut found = Vec::new();
        while let Some(end) = self.held.iter().position(|byte| *byte == b'\n') {
            let rest = self.held.split_off(end + 1);
            let line = std::mem::replace(&mut self.held, rest);
            let line = std::str::from_utf8(&line).map_err(|_| "a line is not UTF-8")?;
            if let Some(payload) = line.trim_end().strip_prefix("data:") {
                found.push(payload.trim_start().to_owned());
            }
        }
        if self.held.len() > LONGEST {
            return Err("a line is longer than 4 MiB");
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_come_out_whole_however_the_bytes_are_cut() {
        let stream = "data: {\"a\": \"é\"}\r\n\r\n: ping\nevent: x\ndata:[DONE]\n\n".as_bytes();
        for cut in 0..stream.len() {
            let mut lines = Lines::default();
            let (one, other) = stream.split_at(cut);
            let mut all = lines.push(one).unwrap();
            all.extend(lines.push(other).unwrap());
            assert_eq!(all, ["{\"a\": \"é\"}", "[DONE]"]);
        }
    }

    #[test]
    fn a_line_without_an_end_is_refused() {
        let mut lines = Lines::default();
        assert!(lines.push(&vec![b'x'; LONGEST]).unwrap().is_empty());
        assert!(lines.push(b"x").is_err());
        assert!(Lines::default().push(b"data: \xff\n").is_err());
    }
}
