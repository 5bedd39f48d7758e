//! The arms of a comparison, as data: an arm is a name and the configuration keys it sets.

/// Keys of the configuration with their values, as in `--set`.
type Keys = &'static [&'static str];

/// One arm.
#[derive(Debug)]
struct Spec {
    name: &'static str,
    about: &'static str,
    /// Whether its server trains.
    trains: bool,
    /// Whether its client puts the persona's corrections into the system message.
    memory: bool,
    keys: &'static [Keys],
}

/// An arm of a comparison. The servers of a run differ in its configuration keys and in nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arm(usize);

const fn frozen(name: &'static str, about: &'static str, keys: &'static [Keys]) -> Spec {
    Spec {
        name,
        about,
        trains: false,
        memory: false,
        keys,
    }
}

const fn trains(name: &'static str, about: &'static str, keys: &'static [Keys]) -> Spec {
    Spec {
        trains: true,
        ..frozen(name, about, keys)
    }
}

/// No experience; stated, because it is on by default for the embedded model.
const NO_EXPERIENCE: &str = "experience.mode=off";
/// Rewards.
const BINARY: Keys = &["training.method=binary", NO_EXPERIENCE];
/// The log-prob gap of recorded tokens to the base model that reads the hint.
const OPD: Keys = &[
    "training.method=opd",
    "training.teacher.source=reference",
    NO_EXPERIENCE,
];
/// Rewards and that gap.
const HYBRID: Keys = &[
    "training.method=hybrid",
    "training.teacher.source=reference",
    NO_EXPERIENCE,
];
/// Rewards and the gap over the top-k tokens.
const HYBRID_TOP_K: Keys = &[
    "training.method=hybrid-topk",
    "training.teacher.source=reference",
    NO_EXPERIENCE,
];
/// Rewards and the divergence from the policy that reads the hint.
const HYBRID_DIVERGENCE: Keys = &[
    "training.method=hybrid-divergence",
    "training.teacher.source=policy",
    "training.teacher.top_k=20",
    "training.teacher.top_k_from=teacher",
    "training.teacher.divergence=jensen",
    NO_EXPERIENCE,
];
/// The reverse KL to the base model that reads the hint, over 64 tokens and a tail.
const OPD_TOP_K: Keys = &[
    "training.method=opd-topk",
    "training.teacher.source=reference",
    "training.teacher.top_k=64",
    "training.teacher.top_k_from=student",
    "training.teacher.divergence=reverse",
    NO_EXPERIENCE,
];
/// The reverse KL to the policy that reads its experience, over 64 tokens and a tail.
const EXPERIENCE_TOP_K: Keys = &[
    "training.method=opd-topk",
    "training.teacher.source=policy",
    "training.teacher.top_k=64",
    "training.teacher.top_k_from=student",
    "training.teacher.divergence=reverse",
];
/// Pairs alone: neither rewards nor distillation have a weight.
const ACCEPTED_ONLY: Keys = &[
    "training.method=hybrid",
    "training.teacher.reward_weight=0.0",
    "training.teacher.distillation_weight=0.0",
    NO_EXPERIENCE,
];
/// No few-shot distillation; stated, because it is on by default for models of some size.
const NO_FEW_SHOT: &str = "training.few_shot.coef=0.0";
/// Few-shot distillation without pairs.
const FEW_SHOT: Keys = &["training.pairs.loss=none", "training.few_shot.coef=3.0"];
/// No pairs; stated, because they are on by default for models of some size.
const NO_PAIRS: Keys = &["training.pairs.loss=none", NO_FEW_SHOT];
/// The likelihood of accepted replies to complaints.
const SFT: Keys = &["training.pairs.loss=sft", NO_FEW_SHOT];
/// Pairs of an accepted and a rejected reply.
const DPO: Keys = &["training.pairs.loss=dpo", NO_FEW_SHOT];
/// Rehearsal.
const REHEARSAL: Keys = &["training.rehearsal.enabled=true"];
/// No rehearsal; stated, because it is on by default.
const NO_REHEARSAL: Keys = &["training.rehearsal.enabled=false"];

const SPECS: &[Spec] = &[
    frozen("control", "The frozen model", &[&[NO_EXPERIENCE]]),
    trains(
        "binary",
        "Trains on rewards only",
        &[BINARY, NO_PAIRS, NO_REHEARSAL],
    ),
    trains(
        "opd",
        "Distils from the hinted teacher only, on single tokens",
        &[OPD, NO_PAIRS, NO_REHEARSAL],
    ),
    trains(
        "hybrid",
        "Trains on rewards and distils from the hinted teacher",
        &[HYBRID, NO_PAIRS, NO_REHEARSAL],
    ),
    trains(
        "hybrid-topk",
        "Trains on rewards and distils from the hinted teacher over the top-k tokens, with a choice of hints",
        &[HYBRID_TOP_K, NO_PAIRS, NO_REHEARSAL],
    ),
    trains(
        "hybrid-divergence",
        "Trains on rewards and distils what the policy would have said with the hint",
        &[HYBRID_DIVERGENCE, NO_PAIRS, NO_REHEARSAL],
    ),
    trains(
        "redo-sft",
        "Trains on accepted replies to complaints only",
        &[ACCEPTED_ONLY, SFT, NO_REHEARSAL],
    ),
    trains(
        "redo-sft-rehearsal",
        "Trains on accepted replies to complaints only, with rehearsal",
        &[ACCEPTED_ONLY, SFT, REHEARSAL],
    ),
    trains(
        "redo-dpo",
        "Trains on pairs of an accepted and a rejected reply only",
        &[ACCEPTED_ONLY, DPO, NO_REHEARSAL],
    ),
    trains(
        "redo-dpo-rehearsal",
        "Trains on pairs of an accepted and a rejected reply only, with rehearsal",
        &[ACCEPTED_ONLY, DPO, REHEARSAL],
    ),
    trains(
        "binary-redo",
        "Trains on rewards and on pairs",
        &[BINARY, DPO, NO_REHEARSAL],
    ),
    trains(
        "binary-redo-rehearsal",
        "Trains on rewards and on pairs, with rehearsal",
        &[BINARY, DPO, REHEARSAL],
    ),
    trains(
        "opd-redo",
        "Distils from the hinted teacher and trains on pairs",
        &[OPD, DPO, NO_REHEARSAL],
    ),
    trains(
        "opd-redo-rehearsal",
        "Distils from the hinted teacher and trains on pairs, with rehearsal",
        &[OPD, DPO, REHEARSAL],
    ),
    trains(
        "binary-rehearsal",
        "Trains on rewards only, with rehearsal",
        &[BINARY, NO_PAIRS, REHEARSAL],
    ),
    trains(
        "opd-rehearsal",
        "Distils from the hinted teacher only, on single tokens, with rehearsal",
        &[OPD, NO_PAIRS, REHEARSAL],
    ),
    trains(
        "opd-topk",
        "Distils from the hinted teacher only, by the reverse KL over 64 tokens and a tail",
        &[OPD_TOP_K, NO_PAIRS, NO_REHEARSAL],
    ),
    trains(
        "opd-topk-rehearsal",
        "Distils from the hinted teacher only, by the reverse KL over 64 tokens and a tail, with rehearsal",
        &[OPD_TOP_K, NO_PAIRS, REHEARSAL],
    ),
    trains(
        "opd-topk-redo-sft",
        "Distils by the reverse KL and trains on accepted replies to complaints",
        &[OPD_TOP_K, SFT, NO_REHEARSAL],
    ),
    trains(
        "opd-topk-redo-sft-rehearsal",
        "Distils by the reverse KL and trains on accepted replies to complaints, with rehearsal",
        &[OPD_TOP_K, SFT, REHEARSAL],
    ),
    trains(
        "hybrid-redo-sft-rehearsal",
        "Trains on rewards and on accepted replies to complaints and distils from the hinted teacher, with rehearsal",
        &[HYBRID, SFT, REHEARSAL],
    ),
    trains(
        "hybrid-redo-rehearsal",
        "Trains on rewards and on pairs and distils from the hinted teacher, with rehearsal",
        &[HYBRID, DPO, REHEARSAL],
    ),
    trains(
        "few-shot-rehearsal",
        "Distils from the base model that reads accepted replies as examples only, with rehearsal",
        &[ACCEPTED_ONLY, FEW_SHOT, REHEARSAL],
    ),
    trains("configured", "Trains as the configuration says", &[]),
    trains(
        "one-adapter",
        "The same, with one adapter for both of two people",
        &[&["training.adapters=shared"]],
    ),
    Spec {
        memory: true,
        ..frozen(
            "memory",
            "The frozen model with earlier corrections in the system message",
            &[&[NO_EXPERIENCE]],
        )
    },
    frozen(
        "inject",
        "The frozen model with the experience of the server in the system message",
        &[&["experience.mode=inject"]],
    ),
    trains(
        "distill-experience",
        "Distils from the policy with its experience, by the reverse KL over 64 tokens and a tail, with rehearsal",
        &[
            &["experience.mode=distill"],
            EXPERIENCE_TOP_K,
            NO_PAIRS,
            REHEARSAL,
        ],
    ),
    trains(
        "both-experience",
        "The same, with the experience in the system message of three conversations in four until the weights follow it",
        &[
            &["experience.mode=both"],
            EXPERIENCE_TOP_K,
            NO_PAIRS,
            REHEARSAL,
        ],
    ),
];

impl Arm {
    /// The frozen model.
    pub const CONTROL: Arm = named("control");
    /// Rewards only.
    pub const BINARY: Arm = named("binary");
    /// Distillation from the hinted teacher only.
    pub const OPD: Arm = named("opd");
    /// Rewards and distillation.
    pub const HYBRID: Arm = named("hybrid");
    /// Rewards and the divergence from the policy that reads the hint.
    pub const HYBRID_DIVERGENCE: Arm = named("hybrid-divergence");
    /// Trains with the configuration as it is.
    pub const CONFIGURED: Arm = named("configured");
    /// The frozen model with a client that puts the persona's corrections of earlier conversations into the system
    /// message.
    pub const MEMORY: Arm = named("memory");

    /// All arms, in the order of reports.
    pub const ALL: [Arm; SPECS.len()] = {
        let mut all = [Arm(0); SPECS.len()];
        let mut at = 0;
        while at < all.len() {
            all[at] = Arm(at);
            at += 1;
        }
        all
    };
    /// The arms compared by default on the embedded policy.
    pub const COMPARED: [Arm; 5] = [
        Arm::CONTROL,
        Arm::BINARY,
        Arm::OPD,
        Arm::HYBRID,
        Arm::HYBRID_DIVERGENCE,
    ];
    /// The arms compared by default on a real model.
    pub const REAL: [Arm; 8] = [
        Arm::CONTROL,
        Arm::BINARY,
        Arm::OPD,
        Arm::HYBRID,
        named("redo-dpo-rehearsal"),
        named("opd-topk-redo-sft-rehearsal"),
        named("hybrid-redo-sft-rehearsal"),
        Arm::MEMORY,
    ];

    /// Name in reports and on the command line.
    pub fn name(self) -> &'static str {
        SPECS[self.0].name
    }

    /// One-line description.
    pub fn about(self) -> &'static str {
        SPECS[self.0].about
    }

    /// Whether its server trains.
    pub fn trains(self) -> bool {
        SPECS[self.0].trains
    }

    /// Whether its client has a memory.
    pub fn remembers(self) -> bool {
        SPECS[self.0].memory
    }

    /// Whether all people who share its server share an adapter.
    pub fn has_one_adapter(self) -> bool {
        self.overrides().contains(&"training.adapters=shared")
    }

    /// The configuration keys it sets, each as `section.key=value`.
    pub fn overrides(self) -> Vec<&'static str> {
        SPECS[self.0].keys.concat()
    }
}

/// The arm of this name. A name without an arm is an index out of bounds, which does not compile.
const fn named(name: &str) -> Arm {
    let mut at = 0;
    while !equal(SPECS[at].name.as_bytes(), name.as_bytes()) {
        at += 1;
    }
    Arm(at)
}

const fn equal(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn arms_are_named_once_and_only_training_arms_set_keys_of_training() {
        let names: HashSet<&str> = Arm::ALL.into_iter().map(Arm::name).collect();
        assert_eq!(names.len(), Arm::ALL.len());
        for arm in Arm::ALL {
            assert!(!(arm.trains() && arm.remembers()));
            for set in arm.overrides() {
                let (key, _) = set.split_once('=').unwrap();
                let trains = key.starts_with("training.");
                assert!(trains || key.starts_with("experience."), "{set}");
                assert!(!trains || arm.trains(), "{}: {set}", arm.name());
            }
        }
        assert_eq!(
            (Arm::HYBRID.name(), Arm::MEMORY.name()),
            ("hybrid", "memory")
        );
    }
}
