//! The engine: checkpoints, tokenizer, chat template, batching, sampling, adapters, gradients
