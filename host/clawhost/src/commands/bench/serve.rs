//! `clawhost bench serve`: how fast the engine decodes, runs prompts and goes on in a conversation; what memory
//! would allow; what a chat client sees over HTTP; and the same of another program on the same checkpoint.

mod peer;
mod shapes;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use clawhost_policy::measure::{
    BEYOND_CACHES, ServeLoad, Spread, TurnLoad, prefill, read_bandwidth, reuse, serve,
};
use clawhost_policy::{
    ChatTemplate, Engine, EngineOptions, Model, ModelConfig, ModelFiles, Tokenizer,
};

use self::peer::{Ask, Peer};
use self::shapes::Shape;
use super::{Figure, Shared, counted, streaming};
use crate::progress::Progress;

/// Requests at once.
const STREAMS: [usize; 4] = [1, 4, 16, 64];
/// Requests at once over HTTP.
const CLIENTS: [usize; 3] = [1, 4, 16];
/// Tokens of prompts that are measured by themselves, where the context holds them.
const PROMPTS: [usize; 2] = [512, 2048];
/// Tokens of a first prompt whose conversation goes on.
const FIRST_TURN: usize = 512;
const REPLY: u32 = 32;
const ADDED: usize = 64;
/// Weights that are read so much faster than memory lie in a cache.
const CACHED: f64 = 1.5;

/// Flags of `bench serve`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Examples:\n  clawhost bench serve --model ./Qwen3-0.6B --json\n  clawhost bench serve --random qwen3-0.6b --rounds 2\n  \
    clawhost bench serve --threads 2 --peer \"python3 benches/peers/transformers_serve.py\"\n\n\
    Decoding counts the tokens that come while all streams decode, taken every two milliseconds; every token is drawn, with\n\
    its log-probs. First tokens and gaps are those of somebody who is woken for each token. The peer measures in turns with this program, on the same checkpoint and as many threads; pin both with `taskset` to the same processors. The\n\
    roofline is the rate at which the same threads read as many bytes as the weights have, which every step reads once."
)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    pub(super) shared: Shared,
    /// Weights drawn at random in the shape of a known model, instead of a checkpoint
    #[arg(long, value_name = "SHAPE", value_enum, conflicts_with = "model")]
    random: Option<Shape>,
    /// Threads of a matrix product; 0 is one for each processor
    #[arg(long, default_value_t = 0, value_name = "N")]
    threads: usize,
    /// Command of another program to measure beside this one; it gets --model and --threads
    #[arg(long, value_name = "COMMAND")]
    peer: Option<String>,
}

/// Measures everything.
pub(super) fn serving(args: &ServeArgs) -> Result<Vec<Figure>> {
    let rounds = args.shared.rounds as usize;
    let threads = match args.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    let engine = engine(args, threads)?;
    let mut peer = match &args.peer {
        Some(command) => Some(Peer::start(command, &engine, threads)?),
        None => None,
    };
    let over = if args.random.is_some() {
        0.0
    } else {
        HTTP_WORK
    };
    let decoded: f64 = STREAMS.into_iter().map(work).sum();
    let mut progress = Progress::new(rounds as f64 * (decoded + PROMPT_WORK + TURN_WORK + over));
    let mut figures = decoding(&engine, rounds, peer.as_mut(), &mut progress)?;
    let alone = figures.first().map_or(0.0, |figure| figure.spread.median);
    progress.stage("long prompts");
    figures.extend(prompts(&engine, rounds, peer.as_mut())?);
    progress.done(rounds as f64 * PROMPT_WORK);
    if let Some(peer) = peer {
        peer.stop()?;
    }
    progress.stage("a second turn, and what memory allows");
    figures.extend(second_turn(&engine, rounds)?);
    figures.extend(roofline(&engine, threads, rounds, alone));
    progress.done(rounds as f64 * TURN_WORK);
    engine.shutdown();
    // Its memory is wanted for the server's.
    drop(engine);
    if args.random.is_none() {
        progress.stage("a whole server");
        figures.extend(over_http(args)?);
    }
    progress.end();
    Ok(figures)
}

/// What a round of long prompts is in an estimate, in the unit of [`work`].
const PROMPT_WORK: f64 = 10.0;
/// The same of a second turn.
const TURN_WORK: f64 = 3.0;
/// The same of a whole server.
const HTTP_WORK: f64 = 12.0;

/// What a round of so many streams is in an estimate: a step costs as much for one stream as for some eight, and a
/// prompt for each stream.
fn work(streams: usize) -> f64 {
    (streams + streams.max(8)) as f64
}

fn engine(args: &ServeArgs, threads: usize) -> Result<Engine> {
    let most = ServeLoad {
        streams: STREAMS.into_iter().max().unwrap_or(1),
        ..ServeLoad::default()
    };
    let options = |config: &ModelConfig| {
        let usual = EngineOptions::default();
        EngineOptions {
            threads,
            max_batch: most.streams,
            cache_budget: most
                .cache_budget(config, usual.prefill_chunk)
                .max(usual.cache_budget),
            ..usual
        }
    };
    let Some(shape) = args.random else {
        let files = super::files(&args.shared)?;
        let config = ModelConfig::parse(files.config())?;
        return Ok(Engine::load(&files, options(&config))?);
    };
    // A tokenizer is needed, and any will do.
    let files = ModelFiles::embedded();
    let tokenizer = Tokenizer::from_bytes(files.tokenizer()?)?;
    let template = std::str::from_utf8(files.template()?).context("the template is no text")?;
    let template = ChatTemplate::new(template, [])?;
    let model = Model::random(shape.config()?, 1).with_threads(threads);
    let options = options(model.config());
    Ok(Engine::start(
        Arc::new(model),
        Arc::new(tokenizer),
        Arc::new(template),
        options,
    ))
}

fn named(peer: Option<&Peer>) -> String {
    peer.map_or_else(String::new, |peer| peer.name().to_owned())
}

/// Decoding at each number of streams, ours and the peer's in turns.
fn decoding(
    engine: &Engine,
    rounds: usize,
    mut peer: Option<&mut Peer>,
    progress: &mut Progress,
) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let other = named(peer.as_deref());
    for streams in STREAMS {
        let (mut rates, mut firsts, mut gaps) = (Vec::new(), Vec::new(), Vec::new());
        let (mut peers, mut ratios, mut peer_firsts) = (Vec::new(), Vec::new(), Vec::new());
        let mut load = ServeLoad {
            streams,
            rounds: 1,
            ..ServeLoad::default()
        };
        for round in 0..rounds {
            progress.stage(&format!("decoding, {}", counted(streams)));
            load.seed = round as u64;
            let own = serve(engine, &load)?;
            rates.push(own.decode_tokens_per_second.median);
            firsts.push(own.first_token_ms.median);
            gaps.push(own.longest_gap_ms.median);
            if let Some(peer) = &mut peer {
                let answer = peer.ask(&Ask::Decode {
                    streams,
                    prompt_tokens: load.prompt_tokens,
                    reply_tokens: load.reply_tokens,
                })?;
                ratios.push(own.decode_tokens_per_second.median / answer.tokens_per_second);
                peers.push(answer.tokens_per_second);
                peer_firsts.extend(answer.first_token_ms);
            }
            progress.done(work(streams));
        }
        let label = |what: &str| format!("{what}, {}", counted(streams));
        let first = format!("first token after a prompt of {}", load.prompt_tokens);
        let rows = [
            (label("decode"), "tokens/s", rates),
            (label(&first), "ms", firsts),
            (label("longest gap between tokens"), "ms", gaps),
            (label(&format!("decode, {other}")), "tokens/s", peers),
            (label("decode, times as fast"), "x", ratios),
            (label(&format!("{first}, {other}")), "ms", peer_firsts),
        ];
        figures.extend(measured(rows));
    }
    Ok(figures)
}

/// Long prompts by themselves, ours and the peer's in turns.
fn prompts(engine: &Engine, rounds: usize, mut peer: Option<&mut Peer>) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let other = named(peer.as_deref());
    for tokens in PROMPTS {
        if tokens >= engine.context() {
            continue;
        }
        let (mut rates, mut peers, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let own = prefill(engine, tokens, 1)?.median;
            rates.push(own);
            if let Some(peer) = &mut peer {
                let answer = peer.ask(&Ask::Prefill {
                    prompt_tokens: tokens,
                })?;
                peers.push(answer.tokens_per_second);
                ratios.push(own / answer.tokens_per_second);
            }
        }
        let label = |what: &str| format!("{what}, 1 x {tokens}");
        let rows = [
            (label("prefill"), "tokens/s", rates),
            (label(&format!("prefill, {other}")), "tokens/s", peers),
            (label("prefill, times as fast"), "x", ratios),
        ];
        figures.extend(measured(rows));
    }
    Ok(figures)
}

/// What it saves to go on from what the engine holds of a conversation.
fn second_turn(engine: &Engine, rounds: usize) -> Result<Vec<Figure>> {
    let most = engine.context().saturating_sub(REPLY as usize + ADDED + 2);
    let load = TurnLoad {
        prompt_tokens: FIRST_TURN.min(most),
        reply_tokens: REPLY,
        added_tokens: ADDED,
        rounds,
    };
    let turn = reuse(engine, &load)?;
    let figure = |what: &str, unit, spread| Figure {
        name: format!("second turn after {} tokens, {what}", load.prompt_tokens),
        unit,
        spread,
    };
    Ok(vec![
        figure("first token with what is held", "ms", turn.reused_ms),
        figure("first token anew", "ms", turn.anew_ms),
        figure("gain of prefix reuse", "x", turn.gain),
    ])
}

/// How close decoding of one stream comes to reading the weights once a token.
fn roofline(engine: &Engine, threads: usize, rounds: usize, rate: f64) -> Vec<Figure> {
    let model = engine.model();
    let config = model.config();
    let all: usize = model
        .parameters()
        .iter()
        .map(|(_, values)| values.len())
        .sum();
    // A token reads one row of an embedding that is not the head as well.
    let looked_up = if config.tie_word_embeddings {
        0
    } else {
        config.vocab_size * config.hidden_size
    };
    let bytes = (all - looked_up) * size_of::<f32>();
    let memory = read_bandwidth(BEYOND_CACHES, threads, rounds);
    let weights = read_bandwidth(bytes, threads, rounds);
    let cached = weights.median > CACHED * memory.median;
    let place = if cached { "a cache" } else { "memory" };
    let scaled = |spread: Spread, factor: f64| Spread {
        median: spread.median * factor,
        low: spread.low * factor,
        high: spread.high * factor,
    };
    let share = 100.0 * rate * bytes as f64 / weights.median.max(1.0);
    let figure = |name: String, unit, spread| Figure { name, unit, spread };
    vec![
        figure(
            "weights read for a token".to_owned(),
            "MB",
            Spread::of(&[bytes as f64 / 1e6]),
        ),
        figure(
            format!("reading memory, {threads} threads"),
            "GB/s",
            scaled(memory, 1e-9),
        ),
        figure(
            format!("reading as much as the weights, which lie in {place}, {threads} threads"),
            "GB/s",
            scaled(weights, 1e-9),
        ),
        figure(
            "roofline of decoding, 1 stream".to_owned(),
            "tokens/s",
            scaled(weights, 1.0 / bytes as f64),
        ),
        figure(
            "share of the roofline reached, 1 stream".to_owned(),
            "%",
            Spread::of(&[share]),
        ),
    ]
}

/// What a chat client sees of a whole server.
fn over_http(args: &ServeArgs) -> Result<Vec<Figure>> {
    let shared = &args.shared;
    let mut figures = Vec::new();
    for one in streaming::measure(shared.model.as_deref(), &CLIENTS, shared.rounds)? {
        let label = |what: &str| format!("{what}, {}", counted(one.streams));
        let share = format!(
            "first token over HTTP, share of a reply of {} tokens",
            streaming::REPLY
        );
        figures.push(Figure {
            name: label("first token over HTTP"),
            unit: "ms",
            spread: one.first_token_ms,
        });
        figures.push(Figure {
            name: label(&share),
            unit: "%",
            spread: one.first_token_share,
        });
    }
    Ok(figures)
}

/// Figures of what was measured at all.
fn measured(
    rows: impl IntoIterator<Item = (String, &'static str, Vec<f64>)>,
) -> impl Iterator<Item = Figure> {
    rows.into_iter()
        .filter(|(_, _, values)| !values.is_empty())
        .map(|(name, unit, values)| Figure {
            name,
            unit,
            spread: Spread::of(&values),
        })
}

/// A directory that is removed again.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("clawhost-bench-peer-{}", std::process::id()));
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(Self(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left behind in a temporary directory is no reason to fail.
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}
