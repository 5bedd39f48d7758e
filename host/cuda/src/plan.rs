//! What the kernels can run, and what fits the memory of a device: rejected with the numbers before anything is loaded.

use clawhost_engine::ForwardError;
use clawhost_model::{ModelConfig, Quantization};

use crate::device::{Driver, Precision, Result};
use crate::kernels::MAX_HEAD_DIM;
use crate::memory::CudaMemory;

/// Tokens for whose activations there must be room: a chunk of a prompt.
const PASS_TOKENS: usize = 512;

/// Widths are multiples of this, so that rows are read 16 bytes at a time.
const WIDTH_STEP: usize = 8;

fn reject(problem: String) -> ForwardError {
    ForwardError::Device(problem)
}

/// Checks that the kernels run this model.
///
/// # Errors
/// The first size that they do not have.
pub(crate) fn check_model(c: &ModelConfig) -> Result<()> {
    let widths = [
        ("hidden_size", c.hidden_size),
        ("intermediate_size", c.intermediate_size),
        ("num_attention_heads * head_dim", c.query_width()),
        ("num_key_value_heads * head_dim", c.key_width()),
    ];
    for (name, width) in widths {
        if !width.is_multiple_of(WIDTH_STEP) {
            return Err(reject(format!(
                "{name} = {width} is not a multiple of {WIDTH_STEP}, which the CUDA backend needs; use the CPU backend"
            )));
        }
    }
    if c.head_dim > MAX_HEAD_DIM {
        return Err(reject(format!(
            "head_dim = {} is larger than {MAX_HEAD_DIM}, the most that the CUDA backend runs; use the CPU backend",
            c.head_dim
        )));
    }
    // A random number of the sampler is compared with sums of at most this many weights.
    let most = 1 << 18;
    if c.vocab_size > most {
        return Err(reject(format!(
            "vocab_size = {} is larger than {most}, the most that the CUDA backend samples from; use the CPU backend",
            c.vocab_size
        )));
    }
    Ok(())
}

/// Checks that weights and activations fit the free memory. KV memory is the operator's choice and is checked when it is
/// made.
///
/// # Errors
/// What they need and what is free, in MiB.
pub(crate) fn check_memory(
    driver: &dyn Driver,
    c: &ModelConfig,
    (precision, quantization): (Precision, Quantization),
) -> Result<()> {
    let memory = CudaMemory::new(c, precision, quantization);
    let (weights, step) = (memory.weights(), memory.step(1, PASS_TOKENS, 16));
    let free = driver.free_memory()?;
    let needed = (weights + step) as u64;
    if needed <= free {
        return Ok(());
    }
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    Err(reject(format!(
        "{}: the model needs {} MiB ({} MiB of weights, {} MiB of activations and logits), and {} MiB are free; free memory \
         of the device, or use a smaller model",
        driver.device().name,
        mib(needed),
        mib(weights as u64),
        mib(step as u64),
        free >> 20,
    )))
}
