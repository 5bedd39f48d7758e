//! The end of what a guest writes to its standard output and error.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

use crate::lock::lock;
use crate::printable::one_line;

/// Capacity of the buffer.
const TAIL_BYTES: usize = 4 << 10;
/// Maximum bytes of one write.
const WRITE_BYTES: usize = 16 << 10;

/// A ring buffer that holds the last [`TAIL_BYTES`] bytes written to it.
#[derive(Debug, Clone, Default)]
pub(crate) struct TailBuffer {
    bytes: Arc<Mutex<VecDeque<u8>>>,
}

impl TailBuffer {
    /// The buffered bytes, escaped to one line.
    pub(crate) fn tail(&self) -> String {
        let buffer = self.lock();
        if buffer.is_empty() {
            return String::new();
        }
        let bytes: Vec<u8> = buffer.iter().copied().collect();
        one_line(String::from_utf8_lossy(&bytes).trim_end(), usize::MAX)
    }

    pub(crate) fn push(&self, bytes: &[u8]) {
        let tail = &bytes[bytes.len().saturating_sub(TAIL_BYTES)..];
        let mut buffer = self.lock();
        let overflow = (buffer.len() + tail.len()).saturating_sub(TAIL_BYTES);
        buffer.drain(..overflow);
        buffer.extend(tail);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<u8>> {
        lock(&self.bytes)
    }
}

impl IsTerminal for TailBuffer {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for TailBuffer {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for TailBuffer {
    async fn ready(&mut self) {}
}

impl OutputStream for TailBuffer {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.push(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(WRITE_BYTES)
    }
}

impl AsyncWrite for TailBuffer {
    fn poll_write(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.push(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_buffer_holds_the_end_and_is_bounded() {
        let buffer = TailBuffer::default();
        buffer.push(b"begin");
        for _ in 0..1_000 {
            buffer.push(&[b'x'; 100]);
        }
        buffer.push(&vec![b'y'; 3 * TAIL_BYTES]);
        buffer.push(b"end\n");
        let tail = buffer.tail();
        assert_eq!(tail.len(), TAIL_BYTES - 1);
        assert!(tail.starts_with("yy") && tail.ends_with("yend"));
    }
}
