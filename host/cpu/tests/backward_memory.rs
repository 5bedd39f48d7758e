//! The peak memory of a forward and backward pass above the weights, compared with an autograd graph of the whole
//! model.
//!
//! A counting allocator measures the peak of allocated bytes, gradients included. The reference is candle's autograd
//! over the same model with frozen weights as constants and only log-probs in the loss, so that the graph holds no more
//! than it must.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    missing_docs,
    unreachable_pub,
    reason = "a test fails by panicking; the numbers are printed for information"
)]

mod plain;

use clawhost_cpu::{BatchRow, CpuMemory, CpuModel, GradientTarget, Gradients};
use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Device, Tensor};
use clawhost_engine::{Candidates, LossGradients, Sequence, TrainLimits};
use clawhost_model::{Adapter, LoraSpec, Model, ModelConfig, Quantization, Weights};
use plain::{Plain, recorded};

#[allow(
    unsafe_code,
    reason = "wrapping the system allocator requires this trait"
)]
mod counting {
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    static LIVE: AtomicUsize = AtomicUsize::new(0);
    static PEAK: AtomicUsize = AtomicUsize::new(0);

    /// The system allocator with a count of the allocated bytes.
    struct Counting;

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    fn taken(bytes: usize) {
        let live = LIVE.fetch_add(bytes, Relaxed) + bytes;
        PEAK.fetch_max(live, Relaxed);
    }

    // SAFETY: every call is forwarded to the system allocator with unchanged arguments and result; counting updates two
    // atomics and never allocates.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            taken(layout.size());
            // SAFETY: the caller upholds the contract of this method.
            unsafe { System.alloc(layout) }
        }

        unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
            taken(layout.size());
            // SAFETY: as above.
            unsafe { System.alloc_zeroed(layout) }
        }

        unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
            LIVE.fetch_sub(layout.size(), Relaxed);
            // SAFETY: as above.
            unsafe { System.dealloc(block, layout) }
        }

        unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            taken(size);
            LIVE.fetch_sub(layout.size(), Relaxed);
            // SAFETY: as above.
            unsafe { System.realloc(block, layout, size) }
        }
    }

    /// The peak of bytes allocated while `work` runs, above those allocated before.
    pub fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
        let before = LIVE.load(Relaxed);
        PEAK.store(before, Relaxed);
        let done = work();
        (done, PEAK.load(Relaxed).saturating_sub(before))
    }
}

/// One measurement at a time: the count is process-wide.
static ALONE: Mutex<()> = Mutex::new(());

/// Six layers of width 256, about as large as a decoder in a test can be.
fn model(vocab_size: usize) -> Model {
    let config = serde_json::json!({
        "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "vocab_size": vocab_size, "max_position_embeddings": 2048,
        "tie_word_embeddings": true, "eos_token_id": 1
    });
    Model::random(
        ModelConfig::parse(config.to_string().as_bytes()).unwrap(),
        3,
    )
}

/// The peak bytes of both, and the norm of all gradients, which must agree.
struct Measured {
    ours: usize,
    graph: usize,
}

/// The tokens of each sequence.
fn tokens(vocabulary: usize, (sequences, length): (usize, usize)) -> Vec<Vec<u32>> {
    let token = |s: usize, i: usize| ((i * 29 + s * 17 + i * i) % vocabulary) as u32;
    (0..sequences)
        .map(|s| (0..length).map(|i| token(s, i)).collect())
        .collect()
}

fn adapter(model: &Model) -> Adapter {
    let mut adapter = Adapter::init(model.config(), LoraSpec::default(), 1);
    for (_, values) in adapter.tensors_mut() {
        values
            .iter_mut()
            .zip(0u16..)
            .for_each(|(v, i)| *v += 0.01 * f32::from(i % 7));
    }
    adapter
}

/// The gradients of the mean of all log-probs, and the peak bytes of the pass.
fn run_pass(
    model: &Model,
    adapter: Option<&Adapter>,
    all: &[Sequence<'_>],
    (weight, limits): (f32, TrainLimits),
) -> (Gradients, usize) {
    // The packed weights belong to the model and the adapter, not to a pass: create them first.
    let row = BatchRow {
        tokens: &[1],
        cache: &mut model.new_cache(),
        adapter,
    };
    model.forward(&mut [row]).unwrap();
    counting::peak(|| {
        let trained = adapter.map_or(GradientTarget::Full, GradientTarget::Lora);
        let mut gradients =
            adapter.map_or_else(|| Gradients::for_model(model), Gradients::for_adapter);
        let pass = model.forward_train(trained, all, limits).unwrap();
        let partials: Vec<LossGradients> = pass
            .scores()
            .iter()
            .map(|scored| LossGradients {
                d_logprob: vec![weight; scored.logprobs.len()],
                d_entropy: Vec::new(),
                d_candidates: Vec::new(),
            })
            .collect();
        pass.backward(&partials, &mut gradients).unwrap();
        gradients
    })
}

/// Whole sequences to train on.
fn sequences(all: &[Vec<u32>]) -> Vec<Sequence<'_>> {
    all.iter()
        .map(|tokens| Sequence {
            tokens,
            start: 1,
            temperature: 1.0,
            candidates: Candidates::None,
        })
        .collect()
}

/// Limits with this much memory for stored activations.
fn limits(activation_memory: usize) -> TrainLimits {
    TrainLimits { activation_memory }
}

/// Measures without stored activations.
fn measure(vocabulary: usize, size: (usize, usize), lora: bool) -> Measured {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let model = model(vocabulary);
    let adapter = lora.then(|| adapter(&model));
    let all = tokens(vocabulary, size);
    let all = sequences(&all);
    let weight = 1.0 / (size.0 * (size.1 - 1)) as f32;
    let nothing = limits(0);
    let (gradients, ours) = run_pass(&model, adapter.as_ref(), &all, (weight, nothing));

    let plain = Plain::new(&model, adapter.as_ref(), DType::F32);
    let (norm, graph) = counting::peak(|| {
        let mut loss = Tensor::zeros((), DType::F32, &Device::Cpu).unwrap();
        for s in &all {
            let sum = recorded(&plain.distribution(s), s).sum_all().unwrap();
            loss = (loss + (sum * f64::from(weight)).unwrap()).unwrap();
        }
        let gradients = loss.backward().unwrap();
        let squares = plain.trained.values().map(|v| {
            let gradient = gradients.get(v).unwrap().to_dtype(DType::F64).unwrap();
            gradient
                .sqr()
                .unwrap()
                .sum_all()
                .unwrap()
                .to_scalar::<f64>()
                .unwrap()
        });
        squares.sum::<f64>().sqrt()
    });
    let ours_norm = gradients.norm();
    assert!(
        (ours_norm - norm).abs() <= 1e-4 * norm,
        "{ours_norm} {norm}"
    );

    let kind = if lora { "LoRA r 16" } else { "all parameters" };
    let (mib, ratio) = (1 << 20, graph as f64 / ours as f64);
    let (sequences, length) = size;
    println!(
        "{sequences} x {length} tokens, vocabulary {vocabulary}, {kind}: {} MiB, graph {} MiB, {ratio:.1} times",
        ours / mib,
        graph / mib,
    );
    Measured { ours, graph }
}

#[test]
fn lora_needs_a_fraction_of_the_memory_of_a_graph() {
    let found = measure(1536, (4, 1024), true);
    assert!(found.graph >= 4 * found.ours);
}

#[test]
fn full_training_needs_a_fraction_of_the_memory_of_a_graph() {
    let found = measure(1536, (4, 512), false);
    assert!(found.graph >= 4 * found.ours);
}

#[test]
fn stored_activations_stay_within_their_limit() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let all = tokens(512, (4, 512));
    let run = |bytes| {
        let model = model(512);
        let settings = (1e-3, limits(bytes));
        run_pass(&model, Some(&adapter(&model)), &sequences(&all), settings).1
    };
    // Nothing, then some of the six layers, then all of them.
    let limit = 48 << 20;
    let (nothing, some, all) = (run(0), run(limit), run(1 << 30));
    assert!(
        some > nothing && some <= nothing + limit,
        "{nothing} {some}"
    );
    assert!(all > some, "{some} {all}");
}

/// The memory plan of a pass, computed before anything is loaded, bounds what the pass allocates and is not far above it.
#[test]
fn a_pass_stays_within_its_plan() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let spec = LoraSpec::default();
    for (threads, sizes, vocabulary, stored) in [
        (1, (1, 1500), 512, 0),
        (1, (4, 512), 512, 48 << 20),
        (2, (4, 512), 512, 1 << 30),
        (3, (6, 300), 20_000, 1 << 30),
    ] {
        let model = model(vocabulary).with_threads(threads);
        let adapter = adapter(&model);
        let all = tokens(vocabulary, sizes);
        let memory = CpuMemory::new(model.config(), None, threads);
        let total = sizes.0 * sizes.1;
        for lora in [true, false] {
            let rank = if lora { spec.rank } else { 0 };
            let limits = limits(stored);
            let plan = memory.training_pass((total, sizes.1), rank, limits);
            assert!(plan.stored <= stored);
            let gradients = match lora {
                // One sum, and one of each micro-batch that runs.
                true => (threads + 1) * memory.adapter_values(&spec),
                false => Weights::planned_bytes(model.config(), Quantization::None),
            };
            let planned = plan.stored + plan.working + gradients;
            let adapter = lora.then_some(&adapter);
            let (_, peak) = run_pass(&model, adapter, &sequences(&all), (1e-3, limits));
            println!(
                "{threads} threads, {sizes:?}, lora {lora}: {peak} of {planned} planned bytes"
            );
            assert!(
                peak <= planned && planned <= 2 * peak,
                "{threads} threads, {sizes:?}, lora {lora}: {peak} of {planned} planned bytes"
            );
        }
    }
}

/// With small attention and a large vocabulary, logits dominate the memory of a graph.
#[test]
fn no_tokens_by_vocabulary_matrix_is_allocated() {
    let (tokens, vocabulary) = (4 * 256, 32_768);
    let matrix = tokens * vocabulary * size_of::<f32>();
    let found = measure(vocabulary, (4, 256), true);
    assert!(found.ours < matrix / 2, "{} of {matrix}", found.ours);
    assert!(found.graph >= 4 * found.ours);
}
