//! The test suite of the engine, which runs on any backend.
//!
//! A backend runs it with one line in an integration test:
//!
//! ```ignore
//! clawhost_engine::backend_suite!(cpu, Tolerance::F32, |model| Arc::new(CpuBackend::new(model)));
//! ```
//!
//! The [`Tolerance`] is what its arithmetic allows. A backend that computes in several precisions runs the suite once
//! for each.
//!
//! The suite uses a tiny random model. Tests that depend on the order of steps drive the scheduler directly; tests of the
//! engine thread use a backend that runs one step per permit.

#![allow(
    missing_docs,
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests fail by panicking, and their names say what they show"
)]

pub mod adapters;
pub mod fair_share;
pub mod faults;
pub mod full;
pub mod loading;
pub mod preemption;
pub mod prefix_cache;
pub mod random;
pub mod remote_backend;
pub mod serving;
pub mod steps;
mod tolerance;
pub mod training;
mod wrapped;

pub use tolerance::Tolerance;
pub use wrapped::WrappedBackend;

use std::sync::{Arc, mpsc};

use clawhost_chat::testing::{byte_level, byte_level_json};
use clawhost_chat::{ChatTemplate, Tokenizer};
use clawhost_model::testing::{random_adapter, tiny};
use clawhost_model::{Adapter, LoadError, Model, ModelConfig, ModelFiles, TrainedWeights};

use crate::backend::{self, BLOCK_TOKENS, Batch, Row, RowOutput, Runner};
use crate::scheduler::{Scheduler, kv_cache_tokens};
use crate::sequence::Sequence;
use crate::waiting_queue::WaitingQueue;
use crate::*;

/// The backend under test.
#[derive(Clone, Copy)]
pub struct Suite {
    /// Makes a backend that runs this model.
    pub backend: fn(Arc<Model>) -> Arc<dyn Backend>,
    /// Differences that its arithmetic may cause.
    pub tolerance: Tolerance,
}

impl Suite {
    fn backend(self) -> Arc<dyn Backend> {
        (self.backend)(model())
    }

    /// A backend whose steps are replaced.
    fn wrapped(
        self,
        step: impl FnMut(&mut dyn Runner, Batch<'_>) -> Result<Vec<RowOutput>, ForwardError>
        + Send
        + 'static,
    ) -> Arc<dyn Backend> {
        Arc::new(WrappedBackend::new(self.backend(), step))
    }

    /// Size of `count` KV-cache blocks in bytes.
    fn blocks(self, count: usize) -> usize {
        count * self.backend().block_bytes()
    }

    fn scheduler(self, options: EngineOptions) -> TestScheduler {
        TestScheduler::new(self.backend(), options)
    }

    fn scheduler_with(
        self,
        options: EngineOptions,
        step: impl FnMut(&mut dyn Runner, Batch<'_>) -> Result<Vec<RowOutput>, ForwardError>
        + Send
        + 'static,
    ) -> TestScheduler {
        TestScheduler::new(self.wrapped(step), options)
    }

    fn test_engine(self, options: EngineOptions) -> TestEngine {
        TestEngine {
            scheduler: self.scheduler(options),
            waiting_queue: WaitingQueue::default(),
        }
    }

    /// The reply of a request that runs alone, with unchunked prefill and no prefix cache.
    fn run_alone(self, request: GenerateRequest) -> Reply {
        self.scheduler(EngineOptions {
            enable_prefix_caching: false,
            ..EngineOptions::default()
        })
        .reply(request)
    }

    fn start(self, options: EngineOptions) -> Engine {
        Engine::new(self.backend(), tokenizer(), template(), options).unwrap()
    }

    fn start_with(
        self,
        options: EngineOptions,
        step: impl FnMut(&mut dyn Runner, Batch<'_>) -> Result<Vec<RowOutput>, ForwardError>
        + Send
        + 'static,
    ) -> Engine {
        Engine::new(self.wrapped(step), tokenizer(), template(), options).unwrap()
    }

    /// An engine that runs one step per permit.
    fn stepwise_engine(self, options: EngineOptions) -> (Engine, mpsc::Sender<()>) {
        let (permits, gate) = mpsc::channel();
        let engine = self.start_with(options, move |runner, batch| {
            let _closed = gate.recv();
            runner.step(batch)
        });
        (engine, permits)
    }

    /// Loads a checkpoint.
    fn load(self, files: &ModelFiles) -> Result<Engine, LoadError> {
        let backend = (self.backend)(Arc::new(Model::load(files)?));
        Engine::load(backend, files, EngineOptions::default())
    }
}

/// Runs a test that waits for several things at once.
fn block_on<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(test)
}

// The names of all tests, as `module: test, test; ...`: those that compare numbers, and those of the scheduler.
#[doc(hidden)]
#[macro_export]
macro_rules! with_numeric_tests {
    ($macro:ident, $tolerance:expr, $make:expr) => {
        $crate::$macro! {
            $tolerance, $make;
            adapters: sixty_four_rows_with_sixteen_adapters_match_running_alone;
            full: batch_of_full_copies_and_adapters_matches_running_alone, recorded_logprobs_of_a_full_copy_match_scoring, reply_finishes_on_the_full_copy_it_started_with, prefix_cache_does_not_keep_a_full_copy_alive, full_copy_of_another_shape_fails_only_its_request;
            training: forward_scores_equal_those_of_scoring, gradients_match_finite_differences, gradients_of_two_halves_are_those_of_the_whole, loss_falls_over_steps, updates_match_plain_adamw, restored_session_takes_the_same_next_step, continued_session_takes_the_same_next_step, weights_that_a_session_starts_from_stay_as_they_are, serving_beside_training_does_not_change_replies, passes_yield_to_requests_between_layers, invalid_training_input_is_rejected;
            steps: batched_requests_match_running_alone, chunked_prefill_matches_unchunked, decoding_never_waits_for_more_than_one_chunk, prefill_budget_grows_with_the_batch, prompts_have_the_whole_chunk_beside_replies_that_nobody_reads_as_they_grow, interactive_requests_preempt_teachers_which_then_resume, requests_of_one_priority_run_in_order_of_arrival, cancelled_request_frees_its_blocks_before_the_next_step;
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! with_scheduler_tests {
    ($macro:ident, $tolerance:expr, $make:expr) => {
        $crate::$macro! {
            $tolerance, $make;
            fair_share: many_requests_of_one_user_do_not_delay_another_user, prompt_tokens_are_shared_between_users, interactive_requests_leave_an_eighth_to_lower_priorities, waiting_queue_is_bounded_per_priority;
            faults: model_panic_or_error_fails_only_the_request_that_caused_it, non_finite_logits_fail_only_their_request, adapter_of_another_model_fails_only_its_request, engine_thread_survives_a_panic, device_without_memory_rejects_weights_and_keeps_serving, failed_step_with_a_copy_recomputes_both_requests;
            loading: checkpoint_provides_tokenizer_template_and_defaults, template_receives_the_special_tokens_of_the_checkpoint, load_errors_name_the_damaged_file, backend_reports_its_device;
            preemption: preempted_requests_resume_with_identical_tokens, interactive_request_preempts_a_judge, requests_of_training_get_blocks_under_load, request_waits_for_its_blocks_and_is_not_overtaken, prefix_cache_is_evicted_for_running_requests, prompt_larger_than_the_kv_cache_is_rejected_and_replies_end_at_its_capacity, cancelling_waiting_or_preempted_requests_frees_everything;
            prefix_cache: next_turn_prefills_only_new_tokens, edited_history_reuses_the_unchanged_prefix, versions_never_share_blocks, identical_prompts_are_prefilled_once, choices_of_one_prompt_share_its_blocks, users_with_the_same_system_prompt_share_its_blocks, cancelled_prefill_does_not_block_requests_that_waited_for_its_prefix, prefix_caching_can_be_disabled, kv_cache_budget_bounds_the_prefix_cache;
            random: random_cases_keep_blocks_balanced_and_match_running_alone;
            remote_backend: remote_tokens_become_text_and_stop_conditions_apply, dropped_token_sink_fails_the_reply, backend_failures_leave_the_active_version_unchanged;
            serving: shutdown_lets_replies_finish, shutdown_fails_replies_at_the_deadline, engine_thread_stops_with_the_last_handle, reply_streams_and_ends_with_usage, eos_token_is_recorded_without_text, recorded_logprobs_match_scoring, stop_string_across_tokens_ends_the_reply_and_is_not_emitted, text_held_for_a_partial_stop_string_is_not_lost, reply_finishes_on_the_version_it_started_with, old_adapter_is_dropped_with_its_last_request, full_queue_rejects_and_cancellation_makes_room, requests_submitted_together_start_in_one_step, invalid_requests_are_rejected_before_running, generated_seed_reproduces_the_reply, benchmark_runs_until_every_reply_is_long_enough, benchmark_fails_if_the_kv_cache_cannot_hold_all_streams;
        }
    };
}

/// Declares the tests of the suite for a backend, in a module of its name. `$make` makes a backend that runs a model,
/// `$tolerance` is a [`testing::Tolerance`](crate::testing::Tolerance).
#[macro_export]
macro_rules! backend_suite {
    ($name:ident, $tolerance:expr, $make:expr) => {
        mod $name {
            use super::*;
            $crate::with_numeric_tests!(backend_tests, $tolerance, $make);
            $crate::with_scheduler_tests!(backend_tests, $tolerance, $make);
        }
    };
}

/// As [`backend_suite!`] with the tests that compare numbers only: for a backend too slow to run all of them.
#[macro_export]
macro_rules! numeric_suite {
    ($name:ident, $tolerance:expr, $make:expr) => {
        mod $name {
            use super::*;
            $crate::with_numeric_tests!(backend_tests, $tolerance, $make);
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! backend_tests {
    ($tolerance:expr, $make:expr; $($module:ident: $($test:ident),+;)+) => {
        $(mod $module {
            use super::*;
            $(#[test]
            fn $test() {
                $crate::testing::$module::$test($crate::testing::Suite {
                    backend: $make,
                    tolerance: $tolerance,
                });
            })+
        })+
    };
}

/// EOS token of the test vocabulary.
const EOS: u32 = 262;

fn config() -> ModelConfig {
    ModelConfig {
        vocab_size: 265,
        eos_token_ids: vec![EOS],
        ..tiny()
    }
}

fn model() -> Arc<Model> {
    Arc::new(Model::random(config(), 11))
}

fn tokenizer() -> Arc<Tokenizer> {
    Arc::new(byte_level())
}

fn template() -> Arc<ChatTemplate> {
    Arc::new(ChatTemplate::new("{{ messages[0].content }}", []).unwrap())
}

fn base() -> LoadedVersion {
    LoadedVersion::unloaded(0, "base".to_owned(), None)
}

fn adapter_version(version: u64) -> LoadedVersion {
    LoadedVersion::new(version, Arc::new(random_adapter(&config(), version)))
}

fn prompt(length: usize, salt: u32) -> Vec<u32> {
    (0..length as u32)
        .map(|i| (i * 37 + salt * 101 + 5) % 260)
        .collect()
}

fn request(prompt: Vec<u32>, seed: u64, max_tokens: u32) -> GenerateRequest {
    let sampling = SamplingParams {
        seed: Some(seed),
        max_tokens,
        ..SamplingParams::default()
    };
    GenerateRequest {
        prompt,
        sampling,
        version: base(),
        priority: Priority::Interactive,
        user: None,
    }
}

/// Events of a reply, collected.
#[derive(Debug, Clone, Default, PartialEq)]
struct Reply {
    tokens: Vec<SampledToken>,
    text: String,
    finished: Option<CompletionOutput>,
    failed: Option<String>,
}

impl Reply {
    fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Token(token) => {
                self.text.push_str(&token.text);
                self.tokens.push(token);
            }
            Event::Finished(finished) => {
                self.text.push_str(&finished.text);
                self.finished = Some(finished);
            }
            Event::Failed(reason) => self.failed = Some(reason),
        }
    }

    /// Applies the available events.
    fn poll(&mut self, generation: &mut Generation) {
        while let Ok(event) = generation.events.try_recv() {
            self.apply(event);
        }
    }

    fn collect(mut generation: Generation) -> Self {
        let mut reply = Self::default();
        while let Some(event) = generation.blocking_next() {
            reply.apply(event);
        }
        reply
    }

    /// Asserts the same tokens, and logprobs within the tolerance that other batches and chunks may cause. If they may
    /// change a token too, the replies are compared up to the first one that differs.
    fn assert_agrees(&self, other: &Self, tolerance: Tolerance) {
        assert_eq!(self.failed, other.failed);
        if tolerance.same_tokens {
            assert_eq!(self.ids(), other.ids());
            assert_eq!(self.text, other.text);
        }
        let pairs = self.tokens.iter().zip(&other.tokens);
        for (a, b) in pairs.take_while(|(a, b)| a.id == b.id) {
            tolerance.assert_logprob(a.logprob, b.logprob);
            tolerance.assert_logprob(a.full_logprob, b.full_logprob);
        }
    }
}

/// A scheduler that the test steps itself.
struct TestScheduler {
    inner: Scheduler,
    backend: Arc<dyn Backend>,
    tokenizer: Arc<Tokenizer>,
    arrivals: u64,
}

impl TestScheduler {
    fn new(backend: Arc<dyn Backend>, options: EngineOptions) -> Self {
        Self {
            inner: Scheduler::new(&*backend, options).unwrap(),
            backend,
            tokenizer: tokenizer(),
            arrivals: 0,
        }
    }

    fn sequence(&self, mut request: GenerateRequest, max_len: usize) -> (Sequence, Generation) {
        request.version.load(&self.backend).unwrap();
        let tokenizer = Arc::clone(&self.tokenizer);
        Sequence::new(request, Arc::new([EOS]), None, max_len, tokenizer)
    }

    fn admit(&mut self, request: GenerateRequest) -> Generation {
        let (mut sequence, generation) = self.sequence(request, 512);
        sequence.arrival = self.arrivals;
        self.arrivals += 1;
        self.inner.admit(sequence);
        generation
    }

    fn step(&mut self) {
        self.inner.step();
        self.inner.update_gauges();
        self.inner.send_events();
    }

    /// Steps until no request is running.
    fn finish(&mut self) {
        for _ in 0..10_000 {
            if self.inner.is_idle() {
                return;
            }
            self.step();
        }
        panic!("the requests do not finish");
    }

    fn reply(&mut self, request: GenerateRequest) -> Reply {
        let generation = self.admit(request);
        self.finish();
        Reply::collect(generation)
    }
}

/// A scheduler with its waiting queue, as on the engine thread, that the test steps itself.
struct TestEngine {
    scheduler: TestScheduler,
    waiting_queue: WaitingQueue,
}

impl TestEngine {
    fn submit(&mut self, request: GenerateRequest) -> Result<Generation, SubmitError> {
        let options = &self.scheduler.inner.options;
        let capacity = kv_cache_tokens(&*self.scheduler.backend, options);
        let (sequence, generation) = self.scheduler.sequence(request, capacity.min(512));
        self.waiting_queue.push(
            vec![sequence],
            options.max_waiting_requests,
            [0; Priority::ALL.len()],
        )?;
        Ok(generation)
    }

    fn step(&mut self) {
        let scheduler = &mut self.scheduler.inner;
        let mut state = self.waiting_queue.lock();
        scheduler.stats.cancelled += state.drop_cancelled();
        while let Some(sequence) =
            state.pop_next(|priority, user| scheduler.admission_key(priority, user))
        {
            scheduler.admit(sequence);
        }
        drop(state);
        self.scheduler.step();
    }

    fn is_idle(&self) -> bool {
        self.scheduler.inner.is_idle() && self.waiting_queue.lock().waiting() == 0
    }
}

fn nan_adapter() -> Adapter {
    let mut adapter = random_adapter(&config(), 3);
    for (_, values) in adapter.tensors_mut() {
        values.fill(f32::NAN);
    }
    adapter
}
