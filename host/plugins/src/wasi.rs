//! WASI 0.2 without access to the system, for components whose language runtime links it.
//!
//! There are no environment variables, arguments, directories, sockets or standard input. Output goes to a small ring
//! buffer whose end is included in a fault. Random numbers derive from the call's seed; in the deterministic profile
//! the clocks are frozen. The context is created when a guest first uses it, so guests that only link WASI do not pay
//! for it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};
use wasmtime_wasi::{
    HostMonotonicClock, HostWallClock, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView,
};

use crate::printable::one_line;
use crate::store::CallState;

/// Capacity of the output buffer.
const TAIL_BYTES: usize = 4 << 10;
/// Maximum bytes of one write.
const WRITE_BYTES: usize = 16 << 10;
/// Maximum random bytes of one request.
const RANDOM_BYTES: u64 = 64 << 10;

impl WasiView for CallState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        let deterministic = self.is_deterministic();
        let ctx = self.wasi.get_or_insert_with(|| {
            closed_context(
                self.identity.seed,
                deterministic,
                self.stdout.clone(),
                self.stderr.clone(),
            )
        });
        WasiCtxView {
            ctx,
            table: &mut self.table,
        }
    }
}

fn closed_context(
    seed: u64,
    deterministic: bool,
    stdout: TailBuffer,
    stderr: TailBuffer,
) -> WasiCtx {
    let mut builder = WasiCtxBuilder::new();
    builder
        .stdout(stdout)
        .stderr(stderr)
        .secure_random(ChaCha8Rng::seed_from_u64(seed))
        .insecure_random(ChaCha8Rng::seed_from_u64(seed ^ 1))
        .insecure_random_seed(u128::from(seed))
        .max_random_size(RANDOM_BYTES)
        .allow_tcp(false)
        .allow_udp(false)
        .allow_ip_name_lookup(false);
    if deterministic {
        builder.wall_clock(FrozenClock).monotonic_clock(FrozenClock);
    }
    builder.build()
}

/// A clock that always returns zero.
struct FrozenClock;

impl HostWallClock for FrozenClock {
    fn resolution(&self) -> Duration {
        Duration::from_nanos(1)
    }

    fn now(&self) -> Duration {
        Duration::ZERO
    }
}

impl HostMonotonicClock for FrozenClock {
    fn resolution(&self) -> u64 {
        1
    }

    fn now(&self) -> u64 {
        0
    }
}

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
        let skip = bytes.len().saturating_sub(TAIL_BYTES);
        let tail = bytes.get(skip..).unwrap_or_default();
        let mut buffer = self.lock();
        let overflow = (buffer.len() + tail.len()).saturating_sub(TAIL_BYTES);
        buffer.drain(..overflow);
        buffer.extend(tail);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<u8>> {
        self.bytes
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
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
