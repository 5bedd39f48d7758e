//! What the engine has done, for operators.

/// Counters since the start and the present load.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Requests taken on and not finished, paused ones included.
    pub running: usize,
    /// Requests not taken on yet.
    pub waiting: usize,
    /// Requests that ended by themselves.
    pub finished: u64,
    /// Requests whose reader went away.
    pub cancelled: u64,
    /// Requests that ended with an error.
    pub failed: u64,
    /// Tokens sampled.
    pub tokens_generated: u64,
    /// Prompt tokens run.
    pub prefill_tokens: u64,
    /// Prompt tokens that did not have to be run.
    pub cached_tokens: u64,
    /// Steps of the model.
    pub steps: u64,
    /// Number of steps by rows in the step; index 0 is unused.
    pub batch_sizes: Vec<u64>,
    /// Requests taken on whose attention memory is not there: not yet, or not any more.
    pub paused: usize,
    /// Times that a running request lost its attention memory to others, to begin again later.
    pub pauses: u64,
    /// Requests that began with attention memory of others.
    pub prefix_hits: u64,
    /// Blocks of kept attention memory that were given up for want of room.
    pub evictions: u64,
    /// Blocks of attention memory that there may be.
    pub blocks: usize,
    /// Blocks that nobody uses.
    pub blocks_free: usize,
    /// Blocks kept of finished requests that no running one reads.
    pub blocks_kept: usize,
    /// Blocks that several running requests read.
    pub blocks_shared: usize,
    /// Bytes of attention memory of requests that are not finished.
    pub active_cache_bytes: usize,
    /// Bytes of attention memory kept of finished requests.
    pub cache_bytes: usize,
    /// Threads of training that wait for requests to end.
    pub yielding: usize,
    /// Beginnings whose attention memory is kept, those not counted that a longer one goes on from.
    pub cache_entries: usize,
}

impl EngineStats {
    /// Rows in a step on average; 0 before the first step.
    pub fn mean_batch(&self) -> f64 {
        let rows: u64 = (0u64..)
            .zip(&self.batch_sizes)
            .map(|(rows, steps)| rows * steps)
            .sum();
        if self.steps == 0 {
            0.0
        } else {
            rows as f64 / self.steps as f64
        }
    }

    pub(super) fn count_step(&mut self, rows: usize) {
        self.steps += 1;
        if self.batch_sizes.len() <= rows {
            self.batch_sizes.resize(rows + 1, 0);
        }
        if let Some(count) = self.batch_sizes.get_mut(rows) {
            *count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_over_steps() {
        let mut stats = EngineStats::default();
        assert_eq!(stats.mean_batch(), 0.0);
        for rows in [1, 1, 4] {
            stats.count_step(rows);
        }
        assert_eq!(stats.batch_sizes, [0, 2, 0, 0, 1]);
        assert_eq!(stats.mean_batch(), 2.0);
    }
}
