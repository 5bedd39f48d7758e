//! A buffer that keeps the beginning and the end of a stream.

use std::collections::VecDeque;

/// Keeps up to `capacity` bytes of the beginning and as many of the end.
pub(crate) struct HeadTail {
    capacity: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    dropped: bool,
}

impl HeadTail {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            head: Vec::new(),
            tail: VecDeque::new(),
            dropped: false,
        }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let room = self.capacity - self.head.len();
        let (head, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend(head);
        self.tail.extend(rest);
        let excess = self.tail.len().saturating_sub(self.capacity);
        if excess > 0 {
            self.tail.drain(..excess);
            self.dropped = true;
        }
    }

    fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// The stream in at most `max` bytes, and whether something was dropped.
    fn cut(self, max: usize) -> (Vec<u8>, bool) {
        if self.len() <= max && !self.dropped {
            let mut whole = self.head;
            whole.extend(self.tail);
            return (whole, false);
        }
        let last = max / 2;
        let mut all = self.head;
        // Where the stream was short, the head holds a part of its end.
        let first = max - last;
        all.extend(self.tail);
        let end = all.split_off(all.len() - last.min(all.len()));
        all.truncate(first);
        all.extend(end);
        (all, true)
    }
}

/// Both streams in at most `max` bytes together. Each gets half, and what the other does not need.
pub(crate) fn share(stdout: HeadTail, stderr: HeadTail, max: usize) -> (Vec<u8>, Vec<u8>, bool) {
    let (out, err) = (stdout.len(), stderr.len());
    let for_out = (max / 2).max(max.saturating_sub(err));
    let (stdout, cut_out) = stdout.cut(for_out.min(out));
    let (stderr, cut_err) = stderr.cut(max - stdout.len());
    (stdout, stderr, cut_out || cut_err)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(capacity: usize, text: &str) -> HeadTail {
        let mut stream = HeadTail::new(capacity);
        for byte in text.bytes() {
            stream.push(&[byte]);
        }
        stream
    }

    #[test]
    fn the_middle_is_dropped() {
        let whole = share(stream(8, "12345678"), stream(8, ""), 8);
        assert_eq!(whole, (b"12345678".to_vec(), Vec::new(), false));
        let cut = share(stream(8, "0123456789abcdefghij"), stream(8, ""), 8);
        assert_eq!(cut, (b"0123ghij".to_vec(), Vec::new(), true));
        let short = share(stream(8, "0123456789"), stream(8, ""), 8);
        assert_eq!(short, (b"01236789".to_vec(), Vec::new(), true));
    }

    #[test]
    fn the_streams_share_the_limit() {
        let both = share(
            stream(8, "0123456789abcdefghij"),
            stream(8, "ABCDEFGHIJ"),
            8,
        );
        assert_eq!(both, (b"01ij".to_vec(), b"ABIJ".to_vec(), true));
        let one = share(stream(8, "0123456789"), stream(8, "E!"), 8);
        assert_eq!(one, (b"012789".to_vec(), b"E!".to_vec(), true));
        let other = share(stream(8, "ok"), stream(8, "0123456789"), 8);
        assert_eq!(other, (b"ok".to_vec(), b"012789".to_vec(), true));
        assert!(share(stream(0, "x"), stream(0, ""), 0).2);
    }
}
