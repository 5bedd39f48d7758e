//! WASI 0.2 without access to the system, for components whose language runtime links it.
//!
//! There are no environment variables, arguments, directories, sockets or standard input. Output goes to a small ring
//! buffer whose end is included in a fault. Random numbers derive from the call's seed; in the deterministic profile
//! the clocks are frozen. The context is created when a guest first uses it, so guests that only link WASI do not pay
//! for it.

use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use wasmtime_wasi::{
    HostMonotonicClock, HostWallClock, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView,
};

use crate::store::CallState;
use crate::tail_buffer::TailBuffer;

/// Maximum random bytes of one request.
const RANDOM_BYTES: u64 = 64 << 10;

impl WasiView for CallState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        let deterministic = self.is_deterministic();
        let ctx = self.wasi.get_or_insert_with(|| {
            closed_context(
                self.identity.seed(&self.loaded.digest),
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
