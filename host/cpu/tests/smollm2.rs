//! A published model, SmolLM2-135M-Instruct: its checkpoint and its GGUF files give the same text, and int8 and int4
//! weights stay near f32 in less memory. The figures are printed.
//!
//! Needs the files that `.ci/models` writes, in the folder `CLAWHOST_MODELS`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may fail by panicking, and this one reports figures, or that it cannot run"
)]

mod greedy;

use std::path::{Path, PathBuf};
use std::process::Command;

use clawhost_chat::Tokenizer;
use clawhost_cpu::{CpuModel, load_engine};
use clawhost_engine::{Candidates, EngineOptions, Sequence, SequenceScores};
use clawhost_model::{Model, ModelFiles, Quantization};

const TEXT: &str = "The lighthouse stood at the end of a long, narrow strip of rock. Every evening at 18:45, the keeper \
    climbed 212 steps to light the lamp, and every morning he wrote the weather into a book: wind, clouds, and the ships \
    that passed. One winter, a storm broke the glass, and for three nights there was no light at all. Fishermen from the \
    village rowed out with lanterns and sat on the rocks until dawn, so that no ship would be lost. When the glass was \
    repaired, the keeper baked bread for all of them. \"A lamp is only a lamp,\" he said, \"but a village is a lighthouse.\"";

const QUESTIONS: [&str; 5] = [
    "What is the capital of France?",
    "How many days are in a week?",
    "What is the opposite of hot?",
    "What do bees make?",
    "Write one sentence about the sea.",
];

/// Questions with one answer, at the beginning of [`QUESTIONS`].
const FACTS: usize = 2;

/// The folder of the models; `None` when the test cannot run.
fn models() -> Option<PathBuf> {
    let models = std::env::var_os("CLAWHOST_MODELS").map(PathBuf::from);
    if models.is_none() {
        let missing =
            "SmolLM2 is missing: set CLAWHOST_MODELS to the folder that .ci/models wrote it to";
        assert!(
            std::env::var_os("CI").is_none_or(|ci| ci != "true"),
            "{missing}"
        );
        println!("not run: {missing}");
    }
    models
}

fn open(models: &Path, name: &str) -> ModelFiles {
    ModelFiles::open(&models.join(name)).unwrap()
}

fn prompt(question: &str) -> String {
    format!(
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
         <|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    )
}

/// The greedy replies to some prompts.
fn replies(files: &ModelFiles, quantization: Quantization) -> Vec<String> {
    let options = EngineOptions {
        quantization,
        ..EngineOptions::default()
    };
    let engine = load_engine(files, options).unwrap();
    let reply = |question: &str| {
        engine
            .tokenizer()
            .decode(&greedy::reply(&engine, &prompt(question)))
    };
    QUESTIONS.map(reply).to_vec()
}

#[test]
fn checkpoint_and_gguf_files_give_the_same_greedy_text() {
    let Some(models) = models() else { return };
    let right = replies(&open(&models, "smollm2"), Quantization::None);
    println!("greedy text: {right:#?}");
    assert!(right[0].contains("Paris"), "{right:?}");
    let of = |file: &str, quantization| replies(&open(&models, file), quantization);
    // Half precision holds all bits of the checkpoint's bf16.
    assert_eq!(of("smollm2-f16.gguf", Quantization::None), right);
    // Eight bits do not: where two tokens are nearly as likely, the text may take the other way.
    let eight = of("smollm2-q8_0.gguf", Quantization::None);
    let same = eight.iter().zip(&right).filter(|(a, b)| a == b).count();
    println!(
        "Q8_0: {same} of {} replies are the same: {eight:#?}",
        right.len()
    );
    assert_eq!(eight[..FACTS], right[..FACTS]);
    // Blocks that are kept give what blocks that are restored do.
    assert_eq!(of("smollm2-q8_0.gguf", Quantization::Int8), eight);
    let four = of("smollm2-q4_1.gguf", Quantization::Int4);
    assert_eq!(of("smollm2-q4_1.gguf", Quantization::None), four);
    assert!(four[0].contains("Paris"), "{four:?}");
}

#[test]
fn a_gguf_file_encodes_as_the_checkpoint_does() {
    let Some(models) = models() else { return };
    let tokenizer =
        |name: &str| Tokenizer::from_bytes(open(&models, name).tokenizer().unwrap()).unwrap();
    let (checkpoint, gguf) = (tokenizer("smollm2"), tokenizer("smollm2-q4_1.gguf"));
    let mixed = "  naïve 12345 café\t\n\nfn main() { println!(\"{}\", 3.14); } 日本語 🦀 I'll they're  <|im_end|>x";
    for text in [TEXT, mixed, &prompt("17+25=?")] {
        let ids = gguf.encode(text).unwrap();
        assert_eq!(ids, checkpoint.encode(text).unwrap(), "{text}");
        assert_eq!(gguf.decode_with_special(&ids), text);
    }
    assert_eq!(gguf.vocab_size(), checkpoint.vocab_size());
    let template = |name: &str| open(&models, name).template().unwrap().to_vec();
    assert_eq!(template("smollm2"), template("smollm2-f16.gguf"));
}

fn scores(model: &Model, tokens: &[u32]) -> SequenceScores {
    let sequence = Sequence {
        tokens,
        start: 1,
        temperature: 1.0,
        candidates: Candidates::Top(1),
    };
    model.score(None, &[sequence]).unwrap().remove(0)
}

#[test]
fn int8_and_int4_stay_near_f32() {
    let Some(models) = models() else { return };
    let files = open(&models, "smollm2");
    let tokenizer = Tokenizer::from_bytes(files.tokenizer().unwrap()).unwrap();
    let tokens = tokenizer.encode(TEXT).unwrap();
    let load =
        |files: &ModelFiles, quantization| Model::load_quantized(files, quantization).unwrap();
    let plain = scores(&load(&files, Quantization::None), &tokens);
    let q4_1 = open(&models, "smollm2-q4_1.gguf");
    println!(
        "{} tokens, mean logprob {:.4}",
        tokens.len(),
        mean(&plain.logprobs)
    );
    println!("weights                 mean |diff|   max |diff|   same greedy token");
    for (name, files, quantization, (most_mean, most, agreement)) in [
        ("int8", &files, Quantization::Int8, (0.06, 0.5, 0.93)),
        ("int4", &files, Quantization::Int4, (0.3, 3.0, 0.8)),
        (
            "int4, blocks of the file",
            &q4_1,
            Quantization::Int4,
            (0.3, 3.0, 0.8),
        ),
    ] {
        let own = scores(&load(files, quantization), &tokens);
        let differences: Vec<f32> = own
            .logprobs
            .iter()
            .zip(&plain.logprobs)
            .map(|(a, b)| (a - b).abs())
            .collect();
        let largest = differences.iter().copied().fold(0.0, f32::max);
        let same = own
            .candidates
            .iter()
            .zip(&plain.candidates)
            .filter(|(a, b)| a == b)
            .count();
        let share = same as f32 / tokens.len() as f32;
        println!(
            "{name:24} {:>10.5} {largest:>12.5} {:>10.1} %",
            mean(&differences),
            100.0 * share
        );
        assert!(mean(&differences) < most_mean && largest < most, "{name}");
        assert!(share > agreement, "{name}: {share}");
    }
}

fn mean(values: &[f32]) -> f32 {
    values.iter().sum::<f32>() / values.len() as f32
}

/// Set in a process that only loads a model: the format of its weights.
const LOADS: &str = "CLAWHOST_TEST_LOADS";

#[test]
fn less_memory_is_resident_with_fewer_bits() {
    let Some(models) = models() else { return };
    let files = || open(&models, "smollm2");
    if let Ok(format) = std::env::var(LOADS) {
        let model = Model::load_quantized(&files(), format.parse().unwrap()).unwrap();
        let tokens: Vec<u32> = (0..64).map(|i| i * 7 + 100).collect();
        assert_eq!(scores(&model, &tokens).logprobs.len(), 63);
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        for line in status
            .lines()
            .filter(|line| line.starts_with("VmRSS") || line.starts_with("VmHWM"))
        {
            println!("{line}");
        }
        return;
    }
    if !cfg!(target_os = "linux") {
        return;
    }
    let resident = |format: Quantization| {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "less_memory_is_resident_with_fewer_bits",
                "--nocapture",
            ])
            .env(LOADS, format.name())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let field = |name: &str| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .unwrap_or_else(|| panic!("{text}"));
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
        };
        let (resident, peak) = (field("VmRSS:"), field("VmHWM:"));
        println!(
            "{:5} {resident:>5} MiB resident, {peak:>5} MiB at most",
            format.name()
        );
        resident
    };
    let [plain, eight, four] =
        [Quantization::None, Quantization::Int8, Quantization::Int4].map(resident);
    assert!(eight * 2 < plain, "{eight} of {plain} MiB");
    assert!(four + 30 < eight, "{four} of {eight} MiB");
}
