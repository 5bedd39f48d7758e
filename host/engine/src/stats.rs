//! Engine statistics for operators.

/// Counters since start, and gauges of the current load; of all replicas together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Admitted requests that have not finished, preempted ones included.
    pub running: usize,
    /// Requests in the waiting queue.
    pub waiting: usize,
    /// Requests that completed.
    pub finished: u64,
    /// Requests cancelled because the reader dropped the generation.
    pub cancelled: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Tokens sampled.
    pub tokens_generated: u64,
    /// Prompt tokens prefilled.
    pub prefill_tokens: u64,
    /// Prompt tokens taken from a cached or shared prefix instead of being prefilled.
    pub cached_tokens: u64,
    /// Model steps.
    pub steps: u64,
    /// Number of steps by batch size (rows in the step); index 0 is unused.
    pub batch_sizes: Vec<u64>,
    /// Admitted requests without KV-cache blocks: not allocated yet, or preempted.
    pub preempted: usize,
    /// Preemptions: a running request lost its KV-cache blocks and recomputes them later.
    pub preemptions: u64,
    /// Requests that started from a cached or shared prefix.
    pub prefix_hits: u64,
    /// Prefix-cache blocks evicted to free memory.
    pub evictions: u64,
    /// KV-cache blocks in the pool.
    pub blocks: usize,
    /// Free blocks.
    pub blocks_free: usize,
    /// Blocks held by the prefix cache only: no running request reads them.
    pub blocks_cached: usize,
    /// Blocks shared by several running requests.
    pub blocks_shared: usize,
    /// Bytes of KV cache held by unfinished requests.
    pub kv_cache_bytes: usize,
    /// Bytes of KV cache held by the prefix cache only.
    pub prefix_cache_bytes: usize,
    /// Training threads that currently wait for requests to finish.
    pub yielding_threads: usize,
    /// Cached prefixes; a prefix of a longer cached one is not counted.
    pub prefix_cache_entries: usize,
}

impl EngineStats {
    /// Mean batch size; 0 before the first step.
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

    /// Adds the counters and gauges of another replica.
    pub(super) fn add(&mut self, other: &Self) {
        let Self {
            running,
            waiting,
            finished,
            cancelled,
            failed,
            tokens_generated,
            prefill_tokens,
            cached_tokens,
            steps,
            batch_sizes,
            preempted,
            preemptions,
            prefix_hits,
            evictions,
            blocks,
            blocks_free,
            blocks_cached,
            blocks_shared,
            kv_cache_bytes,
            prefix_cache_bytes,
            yielding_threads,
            prefix_cache_entries,
        } = other;
        for (own, more) in [
            (&mut self.finished, finished),
            (&mut self.cancelled, cancelled),
            (&mut self.failed, failed),
            (&mut self.tokens_generated, tokens_generated),
            (&mut self.prefill_tokens, prefill_tokens),
            (&mut self.cached_tokens, cached_tokens),
            (&mut self.steps, steps),
            (&mut self.preemptions, preemptions),
            (&mut self.prefix_hits, prefix_hits),
            (&mut self.evictions, evictions),
        ] {
            *own += more;
        }
        for (own, more) in [
            (&mut self.running, running),
            (&mut self.waiting, waiting),
            (&mut self.preempted, preempted),
            (&mut self.blocks, blocks),
            (&mut self.blocks_free, blocks_free),
            (&mut self.blocks_cached, blocks_cached),
            (&mut self.blocks_shared, blocks_shared),
            (&mut self.kv_cache_bytes, kv_cache_bytes),
            (&mut self.prefix_cache_bytes, prefix_cache_bytes),
            (&mut self.yielding_threads, yielding_threads),
            (&mut self.prefix_cache_entries, prefix_cache_entries),
        ] {
            *own += more;
        }
        if self.batch_sizes.len() < batch_sizes.len() {
            self.batch_sizes.resize(batch_sizes.len(), 0);
        }
        for (own, more) in self.batch_sizes.iter_mut().zip(batch_sizes) {
            *own += more;
        }
    }

    pub(super) fn count_step(&mut self, rows: usize) {
        self.steps += 1;
        if self.batch_sizes.len() <= rows {
            self.batch_sizes.resize(rows + 1, 0);
        }
        self.batch_sizes[rows] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_batch_averages_over_steps() {
        let mut stats = EngineStats::default();
        assert_eq!(stats.mean_batch(), 0.0);
        for rows in [1, 1, 4] {
            stats.count_step(rows);
        }
        assert_eq!(stats.batch_sizes, [0, 2, 0, 0, 1]);
        assert_eq!(stats.mean_batch(), 2.0);
    }

    #[test]
    fn the_statistics_of_replicas_add_up() {
        let mut all = EngineStats {
            finished: 3,
            blocks: 10,
            ..EngineStats::default()
        };
        all.count_step(1);
        let mut other = EngineStats {
            finished: 4,
            blocks: 20,
            ..EngineStats::default()
        };
        other.count_step(3);
        all.add(&other);
        assert_eq!((all.finished, all.blocks, all.steps), (7, 30, 2));
        assert_eq!(all.batch_sizes, [0, 1, 0, 1]);
        assert_eq!(all.mean_batch(), 2.0);
    }
}
