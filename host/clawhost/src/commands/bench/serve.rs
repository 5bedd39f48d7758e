//! `clawhost bench serve`: decode, prefill and prefix cache speed of the engine, the roofline, latency over HTTP, and
//! the same figures of a peer program on the same checkpoint.

mod peer;

use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use clawhost_chat::{ChatTemplate, Tokenizer};
use clawhost_config::TrainableParameters;
use clawhost_cpu::{BEYOND_CACHES, measure_read_bandwidth};
use clawhost_engine::measure::{
    ServeWorkload, Spread, TurnWorkload, measure_prefill, measure_prefix_cache, measure_serving,
    measure_serving_versions,
};
use clawhost_engine::{Engine, EngineOptions, LoadedVersion};
use clawhost_model::{Adapter, LoraSpec};

use self::peer::{Peer, PeerRequest};
use super::figures::{Figure, Shared, streams_label};
use super::model::ModelFlags;
use super::streaming;
use crate::progress::Progress;

/// Concurrent requests.
const STREAMS: [usize; 5] = [1, 4, 16, 32, 64];
/// Streams with an adapter each.
const ADAPTERS: usize = 16;
/// Concurrent requests over HTTP.
const CLIENTS: [usize; 3] = [1, 4, 16];
/// Prompt lengths of the prefill measurement, where the context is long enough.
const PROMPTS: [usize; 2] = [512, 2048];
/// Prompt tokens of the first turn of a conversation.
const FIRST_TURN: usize = 512;
const REPLY: u32 = 32;
const ADDED: usize = 64;
/// If the weights are read this much faster than memory, they are in a cache.
const CACHED: f64 = 1.5;

/// Flags of `bench serve`.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Examples:\n  clawhost bench serve --model ./Qwen3-0.6B --json\n  clawhost bench serve --random qwen3-0.6b --rounds 2\n  \
    clawhost bench serve --threads 2 --peer \"python3 benches/peers/transformers_serve.py\"\n\n\
    Decoding counts the tokens generated while all streams decode, polled every two milliseconds; tokens are sampled with\n\
    log-probs. First tokens and gaps are those of a client that is woken for each token. The peer alternates with this program on the same checkpoint with as many threads; pin both with `taskset` to the same processors. The\n\
    roofline is the rate at which the same threads read as many bytes as the weights, which every step reads once."
)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    model: ModelFlags,
    #[command(flatten)]
    pub(super) shared: Shared,
    /// Threads of a matrix product; 0 = one per processor
    #[arg(long, default_value_t = 0, value_name = "N")]
    threads: usize,
    /// Command of a peer program to compare with; it gets --model and --threads
    #[arg(long, value_name = "COMMAND")]
    peer: Option<String>,
}

/// Runs all measurements.
pub(super) fn serving(args: &ServeArgs) -> Result<Vec<Figure>> {
    let rounds = args.shared.rounds as usize;
    let threads = match args.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    let engine = load_engine(args, threads)?;
    let mut peer = match &args.peer {
        Some(command) => Some(Peer::start(command, &engine, threads)?),
        None => None,
    };
    let http_work = if args.model.random.is_some() {
        0.0
    } else {
        HTTP_WORK
    };
    let decoded: f64 = STREAMS.into_iter().map(work).sum();
    let mut progress = Progress::new(
        rounds as f64 * (decoded + ADAPTER_WORK + PROMPT_WORK + TURN_WORK + http_work),
    );
    let mut figures = decoding(&engine, rounds, peer.as_mut(), &mut progress)?;
    let alone = figures[0].spread.median;
    progress.stage("adapters");
    figures.extend(adapters(&engine, rounds)?);
    progress.advance(rounds as f64 * ADAPTER_WORK);
    progress.stage("prefill");
    figures.extend(prompts(&engine, rounds, peer.as_mut())?);
    progress.advance(rounds as f64 * PROMPT_WORK);
    if let Some(peer) = peer {
        peer.stop()?;
    }
    progress.stage("prefix cache and roofline");
    figures.extend(second_turn(&engine, rounds)?);
    if engine.backend().name() == "cpu" {
        figures.extend(roofline(&engine, threads, rounds, alone));
    }
    progress.advance(rounds as f64 * TURN_WORK);
    engine.shutdown();
    // Free its memory for the server.
    drop(engine);
    if args.model.random.is_none() {
        progress.stage("HTTP server");
        figures.extend(over_http(args)?);
    }
    progress.clear();
    Ok(figures)
}

/// Work of a round with one and with many adapters, in units of [`work`].
const ADAPTER_WORK: f64 = 64.0;
/// Work of a prefill round in the progress estimate, in units of [`work`].
const PROMPT_WORK: f64 = 10.0;
/// Work of a second-turn round.
const TURN_WORK: f64 = 3.0;
/// Work of an HTTP server round.
const HTTP_WORK: f64 = 12.0;

/// Work of a decode round with this many streams: a step costs as much for one stream as for about eight, and there is
/// one prefill per stream.
fn work(streams: usize) -> f64 {
    (streams + streams.max(8)) as f64
}

fn load_engine(args: &ServeArgs, threads: usize) -> Result<Engine> {
    let largest = ServeWorkload {
        streams: STREAMS.into_iter().max().expect("there are stream counts"),
        ..ServeWorkload::default()
    };
    let files = args.model.files()?;
    let backend = args.model.backend(threads, TrainableParameters::Lora)?;
    let defaults = EngineOptions::default();
    let kv_cache = largest.kv_cache_bytes(backend.block_bytes(), defaults.max_num_batched_tokens);
    let options = EngineOptions {
        num_threads: threads,
        max_num_seqs: largest.streams,
        kv_cache_memory: kv_cache.max(defaults.kv_cache_memory),
        ..defaults
    };
    if args.model.random.is_none() {
        return Ok(Engine::load(backend, &files, options)?);
    }
    let tokenizer = Tokenizer::from_bytes(files.tokenizer()?)?;
    let template =
        std::str::from_utf8(files.template()?).context("the chat template is not valid UTF-8")?;
    let template = ChatTemplate::new(template, [])?;
    Ok(Engine::new(
        backend,
        Arc::new(tokenizer),
        Arc::new(template),
        options,
    )?)
}

fn peer_name(peer: Option<&Peer>) -> String {
    peer.map_or_else(String::new, |peer| peer.name().to_owned())
}

/// Decoding at each number of streams, alternating with the peer.
fn decoding(
    engine: &Engine,
    rounds: usize,
    mut peer: Option<&mut Peer>,
    progress: &mut Progress,
) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let other = peer_name(peer.as_deref());
    for streams in STREAMS {
        let (mut rates, mut firsts, mut gaps) = (Vec::new(), Vec::new(), Vec::new());
        let (mut peers, mut ratios, mut peer_firsts) = (Vec::new(), Vec::new(), Vec::new());
        let mut load = ServeWorkload {
            streams,
            rounds: 1,
            ..ServeWorkload::default()
        };
        for round in 0..rounds {
            progress.stage(&format!("decoding, {}", streams_label(streams)));
            load.seed = round as u64;
            let ours = measure_serving(engine, &load)?;
            rates.push(ours.decode_tokens_per_second.median);
            firsts.push(ours.first_token_ms.median);
            gaps.push(ours.longest_gap_ms.median);
            if let Some(peer) = &mut peer {
                let answer = peer.measure(&PeerRequest::Decode {
                    streams,
                    prompt_tokens: load.prompt_tokens,
                    reply_tokens: load.reply_tokens,
                })?;
                ratios.push(ours.decode_tokens_per_second.median / answer.tokens_per_second);
                peers.push(answer.tokens_per_second);
                peer_firsts.extend(answer.first_token_ms);
            }
            progress.advance(work(streams));
        }
        let label = |what: &str| format!("{what}, {}", streams_label(streams));
        let first = format!("first token after a prompt of {}", load.prompt_tokens);
        let rows = [
            (label("decode"), "tokens/s", rates),
            (label(&first), "ms", firsts),
            (label("longest gap between tokens"), "ms", gaps),
            (label(&format!("decode, {other}")), "tokens/s", peers),
            (label("decode, speedup"), "x", ratios),
            (label(&format!("{first}, {other}")), "ms", peer_firsts),
        ];
        figures.extend(figures_of(rows));
    }
    Ok(figures)
}

/// Decoding with an adapter for each stream, alternating with one adapter for all.
fn adapters(engine: &Engine, rounds: usize) -> Result<Vec<Figure>> {
    let config = engine.model().config();
    let loaded = (1..=ADAPTERS as u64).map(|version| {
        let adapter = Adapter::init(config, LoraSpec::default(), version);
        engine.load_candidate(version, Arc::new(adapter))
    });
    let loaded: Vec<LoadedVersion> = loaded.collect::<Result<_, _>>()?;
    let (mut ones, mut each, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        let load = ServeWorkload {
            streams: ADAPTERS,
            rounds: 1,
            seed: round as u64,
            ..ServeWorkload::default()
        };
        let rate = |versions: &[LoadedVersion]| -> Result<f64> {
            let measured = measure_serving_versions(engine, &load, versions)?;
            Ok(measured.decode_tokens_per_second.median)
        };
        let one = rate(&loaded[..1])?;
        let many = rate(&loaded)?;
        ones.push(one);
        each.push(many);
        ratios.push(many / one);
    }
    let streams = streams_label(ADAPTERS);
    let rows = [
        (
            format!("decode with one adapter, {streams}"),
            "tokens/s",
            ones,
        ),
        (
            format!("decode with {ADAPTERS} adapters, {streams}"),
            "tokens/s",
            each,
        ),
        (
            format!("{ADAPTERS} adapters against one, {streams}"),
            "x",
            ratios,
        ),
    ];
    Ok(figures_of(rows).collect())
}

/// Prefill of single long prompts, alternating with the peer.
fn prompts(engine: &Engine, rounds: usize, mut peer: Option<&mut Peer>) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let other = peer_name(peer.as_deref());
    for tokens in PROMPTS {
        if tokens >= engine.context() {
            continue;
        }
        let (mut rates, mut peers, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let ours = measure_prefill(engine, tokens, 1)?.median;
            rates.push(ours);
            if let Some(peer) = &mut peer {
                let answer = peer.measure(&PeerRequest::Prefill {
                    prompt_tokens: tokens,
                })?;
                peers.push(answer.tokens_per_second);
                ratios.push(ours / answer.tokens_per_second);
            }
        }
        let label = |what: &str| format!("{what}, 1 x {tokens}");
        let rows = [
            (label("prefill"), "tokens/s", rates),
            (label(&format!("prefill, {other}")), "tokens/s", peers),
            (label("prefill, speedup"), "x", ratios),
        ];
        figures.extend(figures_of(rows));
    }
    Ok(figures)
}

/// Time saved on a second turn by the prefix cache.
fn second_turn(engine: &Engine, rounds: usize) -> Result<Vec<Figure>> {
    let limit = engine.context().saturating_sub(REPLY as usize + ADDED + 2);
    let load = TurnWorkload {
        prompt_tokens: FIRST_TURN.min(limit),
        reply_tokens: REPLY,
        added_tokens: ADDED,
        rounds,
    };
    let turn = measure_prefix_cache(engine, &load)?;
    let figure = |what: &str, unit, spread| Figure {
        name: format!("second turn after {} tokens, {what}", load.prompt_tokens),
        unit,
        spread,
    };
    Ok(vec![
        figure("first token, cached prefix", "ms", turn.reused_ms),
        figure("first token, no cache", "ms", turn.anew_ms),
        figure("prefix cache speedup", "x", turn.gain),
    ])
}

/// How close single-stream decoding comes to reading the weights once per token.
fn roofline(engine: &Engine, threads: usize, rounds: usize, rate: f64) -> Vec<Figure> {
    let model = engine.model();
    let config = model.config();
    let total = model.weight_bytes();
    // With an untied embedding, a token reads only one of its rows.
    let embedding = if config.tie_word_embeddings {
        0
    } else {
        config.vocab_size * config.hidden_size * size_of::<f32>()
    };
    let bytes = total - embedding;
    let memory = measure_read_bandwidth(BEYOND_CACHES, threads, rounds);
    let weights = measure_read_bandwidth(bytes, threads, rounds);
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
            "weights read per token".to_owned(),
            "MB",
            Spread::of(&[bytes as f64 / 1e6]),
        ),
        figure(
            format!("memory bandwidth, {threads} threads"),
            "GB/s",
            scaled(memory, 1e-9),
        ),
        figure(
            format!("bandwidth of the weights (in {place}), {threads} threads"),
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

/// Latency of a whole server as seen by a chat client.
fn over_http(args: &ServeArgs) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let (model, device) = (args.model.model.as_deref(), args.model.device);
    for one in streaming::measure(model, device, &CLIENTS, args.shared.rounds)? {
        let label = |what: &str| format!("{what}, {}", streams_label(one.streams));
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

/// Figures of the rows that have values.
fn figures_of(
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
