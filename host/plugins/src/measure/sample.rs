//! Benchmark inputs for every kind of plugin.

use crate::call::CallContext;
use crate::conversation::{Message, Role, Trajectory, Turn};
use crate::fault::Fault;
use crate::host::Plugin;
use crate::kind::Kind;
use crate::verdict::Metric;
use crate::worlds::advantage::RewardedSequence;
use crate::worlds::gate::Candidate;
use crate::worlds::loss::{LossBatch, Requirements};
use crate::worlds::pair_loss::{PairBatch, ScoredPair, ScoredReply};

/// Tokens of the micro-batch for a loss.
pub const LOSS_TOKENS: usize = 65_536;

/// Tokens of each of its sequences, and how many of them belong to the prompt.
const LENGTH: usize = 256;
const PROMPT: usize = 32;

/// Sequences for an advantage plugin, and samples per group.
const SEQUENCES: u32 = 1024;
const GROUP: u32 = 8;

/// The benchmark input of one plugin: a conversation of about 2 KB, [`LOSS_TOKENS`] tokens with the tensors that the loss
/// reads, as many tokens of preference pairs, 1,024 rewarded sequences, or an adapter.
#[derive(Debug, Clone)]
pub struct Sample {
    pub(super) trajectory: Trajectory,
    pub(super) needs: Requirements,
    pub(super) batch: LossBatch,
    pub(super) sequences: Vec<RewardedSequence>,
    pub(super) candidate: Candidate,
    pub(super) pairs: PairBatch,
}

impl Sample {
    /// Creates the input for this plugin. For a loss this calls `describe`, because tensors that it does not read must be
    /// empty.
    ///
    /// # Errors
    /// The fault of the `describe` call.
    pub async fn for_plugin(plugin: &Plugin) -> Result<Sample, Fault> {
        let mut sample = Sample {
            trajectory: conversation(),
            needs: Requirements::default(),
            batch: LossBatch::default(),
            sequences: Vec::new(),
            candidate: candidate(),
            pairs: PairBatch::default(),
        };
        match plugin.kind() {
            Kind::Loss => {
                sample.needs = plugin.describe_loss(CallContext::default()).await.outcome?;
                sample.batch = micro_batch(sample.needs);
            }
            Kind::PairLoss => sample.pairs = pairs(),
            Kind::Advantage => sample.sequences = sequences(),
            _ => {}
        }
        Ok(sample)
    }
}

/// A first version with the drift that a step usually has.
fn candidate() -> Candidate {
    Candidate {
        version: 1,
        parent: 0,
        digest: "0".repeat(64),
        owner: None,
        samples: 16,
        metrics: vec![Metric {
            name: "proof.drift".to_owned(),
            value: 0.01,
        }],
    }
}

/// A short tutoring conversation of about 2 KB.
pub(super) fn conversation() -> Trajectory {
    let reply =
        "**Answer: 7 apples**\n\n1. Maria starts with 12 apples.\n2. She gives 5 of them away.\n\
                 3. 12 - 5 = **7**, so seven apples remain.\n\n"
            .repeat(8);
    let mut trajectory = Trajectory::new("measure", "measure");
    trajectory.turns.push(Turn {
        index: 0,
        prompt: vec![
            Message::text(Role::System, "You help with homework. Be short and friendly. ".repeat(8)),
            Message::text(
                Role::User,
                "Maria has 12 apples and gives 5 to her brother. How many apples does she have left?",
            ),
        ],
        response: Message::text(Role::Assistant, reply),
        next_state: vec![Message::text(
            Role::User,
            "Thanks, but could you write that again without the bold and the list? It looks like AI.",
        )],
        truncated: false,
    });
    trajectory
}

/// Pairs of replies with [`LOSS_TOKENS`] tokens in all.
fn pairs() -> PairBatch {
    let reply = |shift: usize| ScoredReply {
        tokens: (0..LENGTH).map(|i| (i % 1000) as u32).collect(),
        mask: vec![1; LENGTH],
        logprob: (0..LENGTH)
            .map(|i| -(((i + shift) % 97) as f32) / 97.0)
            .collect(),
        ref_logprob: (0..LENGTH).map(|i| -((i % 89) as f32) / 89.0).collect(),
    };
    let pairs = (0..LOSS_TOKENS / LENGTH / 2).map(|at| ScoredPair {
        chosen: reply(at),
        rejected: reply(at + 1),
    });
    PairBatch {
        pairs: pairs.collect(),
        step: 1,
    }
}

fn sequences() -> Vec<RewardedSequence> {
    (0..SEQUENCES)
        .map(|i| RewardedSequence {
            group: i / GROUP,
            length: 64,
            reward: (i % 3) as f32 - 1.0,
            token_rewards: Vec::new(),
        })
        .collect()
}

/// A micro-batch of [`LOSS_TOKENS`], with the tensors that the loss reads.
fn micro_batch(needs: Requirements) -> LossBatch {
    let sequences = LOSS_TOKENS / LENGTH;
    let wave = |scale: f32, count: usize| -> Vec<f32> {
        (0..count)
            .map(|i| -scale * (1.0 + ((i % 97) as f32) / 97.0))
            .collect()
    };
    let optional = |wanted: bool, scale: f32, count: usize| {
        if wanted {
            wave(scale, count)
        } else {
            Vec::new()
        }
    };
    let top = LOSS_TOKENS * needs.k as usize;
    LossBatch {
        offsets: (0..=sequences).map(|i| (i * LENGTH) as u32).collect(),
        groups: (0..sequences).map(|i| i as u32 / GROUP).collect(),
        rewards: (0..sequences).map(|i| (i % 3) as f32 - 1.0).collect(),
        tokens: (0..LOSS_TOKENS).map(|i| (i % 1000) as u32).collect(),
        mask: (0..LOSS_TOKENS)
            .map(|i| u8::from(i % LENGTH >= PROMPT))
            .collect(),
        advantages: (0..LOSS_TOKENS)
            .map(|i| ((i / LENGTH) % 3) as f32 - 1.0)
            .collect(),
        logprob: wave(1.0, LOSS_TOKENS),
        old_logprob: optional(needs.old, 1.01, LOSS_TOKENS),
        ref_logprob: optional(needs.reference, 1.1, LOSS_TOKENS),
        teacher_logprob: optional(needs.teacher, 0.9, LOSS_TOKENS),
        entropy: optional(needs.entropy, -0.5, LOSS_TOKENS),
        topk_ids: (0..top).map(|i| (i % 1000) as u32).collect(),
        topk_logprob: optional(needs.topk, 1.5, top),
        teacher_topk_logprob: optional(needs.teacher_topk, 1.4, top),
        step_tokens: (sequences * (LENGTH - PROMPT)) as u64,
        step_sequences: sequences as u64,
        step: 1,
    }
}
