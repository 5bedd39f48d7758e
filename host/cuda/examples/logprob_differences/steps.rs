//! Log-probs that serving gives sampled tokens, against those that scoring computes, and training with it.
//!
//! - Steps against scores: the prompt alone (the first token of a reply), and replies of some and of many streams, whose
//!   products other kernels compute.
//! - Scores against scores of the same sequences in another batch: the same kernels with products of other shapes. What is
//!   left there is rounding, which a deep model multiplies; what steps differ by beyond it is a difference of the kernels.

use std::path::Path;
use std::sync::Arc;

use clawhost_cuda::{CudaBackend, Precision};
use clawhost_engine::SamplingParams;
use clawhost_engine::backend::{
    AdapterSlot, BLOCK_TOKENS, Backend, Batch, BlockId, Candidates, RequestId, Row, SamplerSpec,
    Sequence,
};
use clawhost_model::{ModelFiles, Quantization};

use crate::Result;

/// Of the tokens of each reply.
type Logprobs = Vec<Vec<f32>>;

const PROMPT: usize = 480;
const REPLY: usize = 48;

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let mut arguments = arguments.iter();
    let dir = arguments.next().ok_or("which directory?")?;
    let temperature: f32 = arguments.next().map_or(Ok(1.0), |text| text.parse())?;
    let precision = match arguments.next().map(String::as_str) {
        Some("f32") => Precision::F32,
        _ => Precision::Bf16,
    };
    let files = ModelFiles::open(Path::new(dir))?;
    let backend = CudaBackend::load(0, &files, Quantization::None, precision)?;
    println!("{precision:?}, temperature {temperature}: mean and largest difference in nats");
    for streams in [1, 4, 32] {
        let (sequences, recorded) = sample(&backend, streams, temperature)?;
        let alone = sequences
            .iter()
            .map(|tokens| score(&backend, &[tokens.as_slice()], temperature))
            .collect::<Result<Vec<_>>>()?
            .concat();
        let together: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
        let together = score(&backend, &together, temperature)?;
        let of = |places: std::ops::Range<usize>| {
            let pairs = recorded.iter().zip(&alone);
            differences(pairs.flat_map(|(a, b)| a[places.clone()].iter().zip(&b[places.clone()])))
        };
        println!("{streams} streams:");
        println!("  first token against its score: {}", of(0..1));
        println!("  next 7 tokens:                 {}", of(1..8));
        println!("  other tokens:                  {}", of(8..REPLY));
        let pairs = alone.iter().flatten().zip(together.iter().flatten());
        println!("  scored alone and together:     {}", differences(pairs));
    }
    Ok(())
}

/// Mean and largest absolute difference.
fn differences<'a>(pairs: impl Iterator<Item = (&'a f32, &'a f32)>) -> String {
    let (mean, most) = crate::differences(pairs);
    format!("{mean:.5} {most:.4}")
}

/// Samples replies to random prompts in steps of all streams. Returns prompts with replies, and the log-probs of the replies.
fn sample(
    backend: &CudaBackend,
    streams: usize,
    temperature: f32,
) -> Result<(Vec<Vec<u32>>, Logprobs)> {
    let vocabulary = backend.model().config().vocab_size as u32;
    let blocks_each = (PROMPT + REPLY).div_ceil(BLOCK_TOKENS);
    let mut runner = backend.runner(streams * blocks_each)?;
    let (mut sequences, mut blocks) = (Vec::new(), Vec::new());
    for stream in 0..streams {
        let mut state = stream as u32 + 1;
        let token = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % vocabulary
        };
        sequences.push((0..PROMPT).map(token).collect::<Vec<u32>>());
        let first = stream * blocks_each;
        let ids = (first..first + blocks_each).map(|id| BlockId(id as u32));
        blocks.push(ids.collect::<Vec<_>>());
        let spec = SamplerSpec {
            params: SamplingParams {
                temperature,
                ..SamplingParams::default()
            },
            seed: stream as u64,
            prompt: Arc::from([]),
            eos_token_ids: Arc::from([]),
            banned: Vec::new(),
            recorded: None,
        };
        runner.add_request(RequestId(stream as u64), spec);
    }
    let mut recorded = vec![Vec::new(); streams];
    for step in 0..REPLY {
        let computed = if step == 0 { 0 } else { PROMPT + step - 1 };
        let rows: Vec<Row<'_>> = (0..streams)
            .map(|stream| Row {
                request: RequestId(stream as u64),
                tokens: &sequences[stream][computed..],
                computed,
                blocks: &blocks[stream][..(PROMPT + step).div_ceil(BLOCK_TOKENS)],
                slot: AdapterSlot::BASE,
                sample: true,
                bitmask: None,
            })
            .collect();
        let outputs = runner.step(Batch {
            copies: &[],
            rows: &rows,
        })?;
        for (stream, output) in outputs.into_iter().enumerate() {
            let output = output.ok_or("a row that samples has a token")??;
            sequences[stream].push(output.id);
            recorded[stream].push(output.full_logprob);
        }
    }
    Ok((sequences, recorded))
}

/// The log-probs of the replies.
fn score(backend: &CudaBackend, all: &[&[u32]], temperature: f32) -> Result<Logprobs> {
    let sequences = all.iter().map(|tokens| Sequence {
        tokens,
        start: PROMPT,
        temperature,
        candidates: Candidates::None,
    });
    let sequences: Vec<Sequence<'_>> = sequences.collect();
    let scores = backend.score(AdapterSlot::BASE, &sequences)?;
    Ok(scores.into_iter().map(|scores| scores.logprobs).collect())
}
