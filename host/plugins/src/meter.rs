//! Resource accounting of one call, and the limit that stopped it.
//!
//! Memory and tables are summed over the whole store: a guest with many small memories gets no more than a guest with
//! one large memory. The first exceeded limit is stored as the cause of the fault, because the engine returns it
//! wrapped in its own errors.

use clawhost_config::{Limits, Profile};
use wasmtime::ResourceLimiter;

use crate::call::TICK;
use crate::fault::FaultKind;

pub(crate) struct Meter {
    limits: Limits,
    profile: Profile,
    memory: Grown,
    tables: Grown,
    pub(crate) peak_memory: usize,
    pub(crate) ticks: u64,
    pub(crate) host_calls: u64,
    pub(crate) model_calls: u32,
    pub(crate) model_tokens: u64,
    pub(crate) http_calls: u32,
    cause: Option<FaultKind>,
}

/// The sum of the sizes of all memories, or of all tables, of a store.
#[derive(Debug, Clone, Copy, Default)]
struct Grown {
    size: usize,
    last: usize,
}

impl Grown {
    /// Counts a growth and returns whether the engine may grow; `Err` has the size that exceeds `limit`.
    fn grow(
        &mut self,
        (current, desired): (usize, usize),
        maximum: Option<usize>,
        limit: usize,
    ) -> Result<bool, usize> {
        if maximum.is_some_and(|maximum| desired > maximum && current > 0) {
            return Ok(false);
        }
        let growth = desired.saturating_sub(current);
        let wanted = self.size.saturating_add(growth);
        if wanted > limit {
            return Err(wanted);
        }
        *self = Self {
            size: wanted,
            last: growth,
        };
        Ok(true)
    }

    /// Takes the last growth back.
    fn undo(&mut self) {
        self.size -= std::mem::take(&mut self.last);
    }
}

/// The error that makes the engine stop the guest; [`Meter::cause`] returns which limit it was.
#[derive(Debug, thiserror::Error)]
#[error("a limit of the call was exceeded")]
struct LimitExceeded;

impl Meter {
    pub(crate) fn new(limits: Limits, profile: Profile) -> Meter {
        Meter {
            limits,
            profile,
            memory: Grown::default(),
            tables: Grown::default(),
            peak_memory: 0,
            ticks: 0,
            host_calls: 0,
            model_calls: 0,
            model_tokens: 0,
            http_calls: 0,
            cause: None,
        }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Resets the per-call counters for another call in the same store. Memory and tables stay counted.
    pub(crate) fn reset(&mut self) {
        self.ticks = 0;
        self.host_calls = 0;
        self.model_calls = 0;
        self.model_tokens = 0;
        self.http_calls = 0;
        self.cause = None;
    }

    /// Takes the limit that stopped the call, if any.
    pub(crate) fn cause(&mut self) -> Option<FaultKind> {
        self.cause.take()
    }

    /// Counts a tick that ended while the guest ran. Returns false when the CPU limit is reached. In the deterministic
    /// profile ticks are only counted, because their number depends on the load of the machine.
    pub(crate) fn tick(&mut self) -> bool {
        self.ticks += 1;
        if self.profile == Profile::Deterministic || self.ticks < self.max_ticks() {
            return true;
        }
        self.stop(FaultKind::Cpu {
            used: self.ticks,
            limit: self.max_ticks(),
            unit: "ticks",
            setting: "cpu_time",
        });
        false
    }

    /// The CPU limit of the fast profile, in whole ticks.
    fn max_ticks(&self) -> u64 {
        let ticks = self.limits.cpu_time.as_millis().div_ceil(TICK.as_millis());
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }

    /// Counts a call from the guest into the host.
    pub(crate) fn host_call(&mut self) -> wasmtime::Result<()> {
        self.host_calls += 1;
        if self.host_calls > self.limits.host_calls {
            let (used, limit) = (self.host_calls, self.limits.host_calls);
            return Err(self.stop(FaultKind::Budget {
                what: "host_calls",
                used,
                limit,
            }));
        }
        Ok(())
    }

    /// Records the cause and returns the error that stops the guest.
    pub(crate) fn stop(&mut self, cause: FaultKind) -> wasmtime::Error {
        self.cause.get_or_insert(cause);
        wasmtime::Error::from(LimitExceeded)
    }
}

impl ResourceLimiter for Meter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let limit = self.limits.memory;
        let grown = self.memory.grow((current, desired), maximum, limit);
        self.peak_memory = self.peak_memory.max(self.memory.size);
        grown.map_err(|wanted| self.stop(FaultKind::Memory { wanted, limit }))
    }

    fn memory_grow_failed(&mut self, _error: wasmtime::Error) -> wasmtime::Result<()> {
        self.memory.undo();
        Ok(())
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let limit = self.limits.table_elements;
        let grown = self.tables.grow((current, desired), maximum, limit);
        grown.map_err(|wanted| self.stop(FaultKind::Table { wanted, limit }))
    }

    fn table_grow_failed(&mut self, _error: wasmtime::Error) -> wasmtime::Result<()> {
        self.tables.undo();
        Ok(())
    }

    fn instances(&self) -> usize {
        200
    }

    fn tables(&self) -> usize {
        64
    }

    fn memories(&self) -> usize {
        32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_summed_and_failed_growth_is_not_counted() {
        let limits = Limits {
            memory: 100,
            ..Limits::default()
        };
        let mut meter = Meter::new(limits, Profile::Deterministic);
        assert!(meter.memory_growing(0, 60, None).unwrap());
        meter
            .memory_grow_failed(wasmtime::Error::msg("no"))
            .unwrap();
        assert!(meter.memory_growing(0, 60, None).unwrap());
        assert!(meter.memory_growing(0, 40, None).unwrap());
        assert!(meter.memory_growing(60, 61, None).is_err());
        assert_eq!(
            meter.cause(),
            Some(FaultKind::Memory {
                wanted: 101,
                limit: 100
            })
        );
        assert_eq!(meter.peak_memory, 100);
    }

    #[test]
    fn ticks_are_limited_exactly_and_only_in_the_fast_profile() {
        let limits = Limits {
            cpu_time: 3 * TICK,
            ..Limits::default()
        };
        let mut meter = Meter::new(limits.clone(), Profile::Deterministic);
        assert!((0..10).all(|_| meter.tick()));
        assert_eq!(meter.ticks, 10);
        let mut meter = Meter::new(limits, Profile::Fast);
        assert_eq!(
            [meter.tick(), meter.tick(), meter.tick()],
            [true, true, false]
        );
        assert_eq!(meter.cause().unwrap().name(), "cpu");
    }
}
