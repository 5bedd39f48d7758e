//! WASI 0.2 for components whose language needs it, with nothing behind it.
//!
//! No environment, no arguments, no directories, no sockets, no standard input. Output goes to a
//! small ring whose end appears in a fault. Random numbers follow from the call's seed; in the
//! deterministic profile the clocks stand still. The context is built when a guest first uses it,
//! so guests that only link WASI do not pay for it.

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

/// Bytes of output that are kept.
const RING_BYTES: usize = 4 << 10;
/// Bytes that a guest may write at once.
const WRITE_BYTES: usize = 16 << 10;
/// Random bytes that a guest may ask for at once.
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

fn closed_context(seed: u64, deterministic: bool, stdout: Ring, stderr: Ring) -> WasiCtx {
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
        builder.wall_clock(Frozen).monotonic_clock(Frozen);
    }
    builder.build()
}

/// A clock that always shows its start.
struct Frozen;

impl HostWallClock for Frozen {
    fn resolution(&self) -> Duration {
        Duration::from_nanos(1)
    }

    fn now(&self) -> Duration {
        Duration::ZERO
    }
}

impl HostMonotonicClock for Frozen {
    fn resolution(&self) -> u64 {
        1
    }

    fn now(&self) -> u64 {
        0
    }
}

/// Keeps the end of what is written to it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ring {
    bytes: Arc<Mutex<VecDeque<u8>>>,
}

impl Ring {
    /// What is kept, as one printable line.
    pub(crate) fn tail(&self) -> String {
        let ring = self.lock();
        if ring.is_empty() {
            return String::new();
        }
        let bytes: Vec<u8> = ring.iter().copied().collect();
        one_line(String::from_utf8_lossy(&bytes).trim_end(), usize::MAX)
    }

    pub(crate) fn push(&self, bytes: &[u8]) {
        let skip = bytes.len().saturating_sub(RING_BYTES);
        let tail = bytes.get(skip..).unwrap_or_default();
        let mut ring = self.lock();
        let overflow = (ring.len() + tail.len()).saturating_sub(RING_BYTES);
        ring.drain(..overflow);
        ring.extend(tail);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<u8>> {
        self.bytes
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl IsTerminal for Ring {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Ring {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Ring {
    async fn ready(&mut self) {}
}

impl OutputStream for Ring {
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

impl AsyncWrite for Ring {
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
    fn the_ring_keeps_the_end_and_never_grows() {
        let ring = Ring::default();
        ring.push(b"begin");
        for _ in 0..1_000 {
            ring.push(&[b'x'; 100]);
        }
        ring.push(&vec![b'y'; 3 * RING_BYTES]);
        ring.push(b"end\n");
        let tail = ring.tail();
        assert_eq!(tail.len(), RING_BYTES - 1);
        assert!(tail.starts_with("yy") && tail.ends_with("yend"));
    }
}
