//! Publishing an adapter does not stall, reject or abort requests: sixteen streams, twenty swaps, no failed request;
//! each stream finishes on the version it started with, and later streams start on newer versions.

use clawhost_cpu::CpuModel;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use clawhost_engine::Sequence;
use clawhost_journal::{TurnId, TurnState};
use clawhost_model::{Adapter, LoraSpec, ModelConfig};
use clawhost_tests::{Client, TestServer, user};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

const STREAMS: usize = 16;
const SWAPS: u64 = 20;
/// Tokens of a reply; at a temperature at which few end earlier.
const LENGTH: usize = 150;
/// Streams of a version that must be in progress before the next version is published.
const STREAMS_IN_PROGRESS: u64 = 4;

/// An adapter that differs from every other.
fn adapter(config: &ModelConfig, version: u64) -> Arc<Adapter> {
    let mut adapter = Adapter::init(config, LoraSpec::default(), version);
    let mut rng = ChaCha8Rng::seed_from_u64(version);
    for (_, values) in adapter.tensors_mut() {
        for value in values {
            *value += rng.random_range(-0.03..0.03);
        }
    }
    Arc::new(adapter)
}

/// Result of a stream.
struct StreamResult {
    turn: TurnId,
    version: u64,
    /// Newest published version when the request was sent, when its response head arrived, and at its end.
    sent_at: u64,
    begun_at: u64,
    ended_at: u64,
}

/// State shared by the publisher and the streams.
#[derive(Default)]
struct Board {
    published: AtomicU64,
    /// Streams of the newest version that have received text and are not finished.
    under_way: Vec<AtomicU64>,
    over: AtomicBool,
}

async fn stream(client: &Client, board: &Board, text: &str) -> Result<StreamResult, String> {
    let sent_at = board.published.load(Ordering::SeqCst);
    let chat = client.chat(&[user(text)]);
    let chat = chat.with(json!({"temperature": 2.0, "max_tokens": LENGTH}));
    let message = |error: reqwest::Error| error.to_string();
    let mut stream = chat.try_stream().await.map_err(message)?;
    if stream.status != 200 {
        return Err(format!("status {}", stream.status));
    }
    let (turn, version) = (stream.turn(), stream.version());
    let begun_at = board.published.load(Ordering::SeqCst);
    let counted = usize::try_from(version).unwrap();
    stream.next_text().await.map_err(message)?;
    board.under_way[counted].fetch_add(1, Ordering::SeqCst);
    let reply = stream.rest().await.map_err(message)?;
    board.under_way[counted].fetch_sub(1, Ordering::SeqCst);
    if !reply.done || reply.finish.is_none() || !reply.errors.is_empty() {
        return Err(format!("{reply:?}"));
    }
    Ok(StreamResult {
        turn,
        version,
        sent_at,
        begun_at,
        ended_at: board.published.load(Ordering::SeqCst),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_swaps_with_sixteen_streams_fail_no_request() {
    let running = TestServer::with(|config| config.training.enabled = false).await;
    let config = running.engine().model().config().clone();
    let adapters: Vec<Arc<Adapter>> = (1..=SWAPS).map(|v| adapter(&config, v)).collect();
    let board = Arc::new(Board {
        under_way: (0..=SWAPS).map(|_| AtomicU64::new(0)).collect(),
        ..Board::default()
    });
    let streams: Vec<_> = (0..STREAMS)
        .map(|number| {
            let (client, board) = (running.client.clone(), Arc::clone(&board));
            tokio::spawn(async move {
                let mut seen = Vec::new();
                for round in 0.. {
                    let text = format!("Stream {number}, round {round}: tell me something.");
                    seen.push(stream(&client, &board, &text).await);
                    if board.over.load(Ordering::SeqCst) {
                        break;
                    }
                }
                seen
            })
        })
        .collect();
    for (version, adapter) in (1..=SWAPS).zip(&adapters) {
        let before = usize::try_from(version - 1).unwrap();
        running
            .until("streams of the version before are under way", || {
                (board.under_way[before].load(Ordering::SeqCst) >= STREAMS_IN_PROGRESS)
                    .then_some(())
            })
            .await;
        let served = running.engine().publish(version, Some(Arc::clone(adapter)));
        assert_eq!(served.version, version);
        board.published.store(version, Ordering::SeqCst);
    }
    let last = usize::try_from(SWAPS).unwrap();
    running
        .until("streams of the last version are under way", || {
            (board.under_way[last].load(Ordering::SeqCst) >= STREAMS_IN_PROGRESS).then_some(())
        })
        .await;
    board.over.store(true, Ordering::SeqCst);
    let (mut seen, mut failed) = (Vec::new(), Vec::new());
    for stream in streams {
        for one in stream.await.unwrap() {
            match one {
                Ok(one) => seen.push(one),
                Err(error) => failed.push(error),
            }
        }
    }
    let stats = running.engine().stats();
    println!(
        "{} streams over {SWAPS} swaps, {} failed, {:.1} rows in a step on average",
        seen.len(),
        failed.len(),
        stats.mean_batch()
    );
    assert_eq!(failed, Vec::<String>::new());
    assert_eq!((stats.failed, stats.cancelled), (0, 0));

    let mut spanning = 0;
    for one in &seen {
        // A version is active slightly before the board records it.
        assert!(
            one.sent_at <= one.version,
            "a request was answered by an old version"
        );
        assert!(one.version <= one.begun_at + 1);
        let record = running.turn(one.turn);
        assert_eq!(record.state, TurnState::Complete);
        assert_eq!(record.adapter_version, one.version);
        spanning += usize::from(one.ended_at > one.version);
    }
    println!("{spanning} streams ended after a newer version had been published");
    assert!(spanning >= STREAMS);
    let mut versions: Vec<u64> = seen.iter().map(|one| one.version).collect();
    versions.sort_unstable();
    versions.dedup();
    assert_eq!(versions, (0..=SWAPS).collect::<Vec<_>>());

    // A stream that outlived its version was sampled from that version to its last token.
    let model = running.engine().model();
    let mut checked = 0;
    for one in seen
        .iter()
        .filter(|one| one.ended_at > one.version)
        .take(24)
    {
        let record = running.turn(one.turn);
        let completion = record.completion.unwrap();
        let tokens = [&record.prompt_ids[..], &completion.token_ids].concat();
        let sequence = [Sequence {
            tokens: &tokens,
            start: record.prompt_ids.len(),
            temperature: record.temperature,
            candidates: clawhost_engine::Candidates::None,
        }];
        let distance = |version: u64| {
            let index = usize::try_from(version).unwrap();
            let adapter = index.checked_sub(1).map(|index| &*adapters[index]);
            let scored = model.score(adapter, &sequence).unwrap();
            let pairs = scored[0].logprobs.iter().zip(&completion.full_logprobs);
            pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
        };
        let (own, next) = (distance(one.version), distance(one.version + 1));
        assert!(own <= 1e-3, "{own} under its own version {}", one.version);
        assert!(next > 1e-2, "{next} under the next version");
        checked += 1;
    }
    println!("{checked} of them recomputed: every token belongs to the version that it began with");
    assert!(checked > 0);
    drop(running);
}
