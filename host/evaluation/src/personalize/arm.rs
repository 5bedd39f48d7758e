//! The arms of a comparison, as data: an arm is a name and the configuration keys it sets.

/// One arm.
#[derive(Debug)]
struct Spec {
    name: &'static str,
    about: &'static str,
    /// Whether its server trains.
    trains: bool,
    /// Whether its client puts the persona's corrections into the system message.
    memory: bool,
    /// Keys of the configuration with their values, as in `--set`.
    overrides: &'static [&'static str],
}

/// An arm of a comparison. The servers of a run differ in its configuration keys and in nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arm(usize);

/// Pairs alone: neither rewards nor distillation have a weight.
///
/// Keys of the arms without pairs and without rehearsal are stated too, since both are on by default for models of some size.
const SPECS: &[Spec] = &[
    Spec {
        name: "control",
        about: "The frozen model",
        trains: false,
        memory: false,
        overrides: &[],
    },
    Spec {
        name: "binary",
        about: "Trains on rewards only",
        trains: true,
        memory: false,
        overrides: &[
            "training.method=binary",
            "training.pairs.loss=none",
            "training.rehearsal.enabled=false",
        ],
    },
    Spec {
        name: "opd",
        about: "Distils from the hinted teacher only, on single tokens",
        trains: true,
        memory: false,
        overrides: &[
            "training.method=opd",
            "training.teacher.source=reference",
            "training.pairs.loss=none",
            "training.rehearsal.enabled=false",
        ],
    },
    Spec {
        name: "hybrid",
        about: "Trains on rewards and distils from the hinted teacher",
        trains: true,
        memory: false,
        overrides: &[
            "training.method=hybrid",
            "training.teacher.source=reference",
            "training.pairs.loss=none",
            "training.rehearsal.enabled=false",
        ],
    },
    Spec {
        name: "hybrid-topk",
        about: "Trains on rewards and distils from the hinted teacher over the top-k tokens, with a choice of hints",
        trains: true,
        memory: false,
        overrides: &[
            "training.method=hybrid-topk",
            "training.teacher.source=reference",
            "training.pairs.loss=none",
            "training.rehearsal.enabled=false",
        ],
    },
    Spec {
        name: "hybrid-divergence",
        about: "Trains on rewards and distils what the policy would have said with the hint",
        trains: true,
        memory: false,
        overrides: &[
            "training.method=hybrid-divergence",
            "training.teacher.source=policy",
            "training.teacher.top_k=20",
            "training.teacher.top_k_from=teacher",
            "training.teacher.divergence=jensen",
            "training.pairs.loss=none",
            "training.rehearsal.enabled=false",
        ],
    },
    Spec {
        name: "redo-sft",
        about: "Trains on accepted replies to complaints only",
        trains: true,
        memory: false,
        overrides: &[
            "training.method=hybrid",
            "training.teacher.reward_weight=0.0",
            "training.teacher.distillation_weight=0.0",
            "training.pairs.loss=sft",
            "training.rehearsal.enabled=false",
        ],
    },
    Spec {
        name: "redo-sft-rehearsal",
        about: "Trains on accepted replies to complaints only, with rehearsal",
        trains: true,
        memory: false,
        overrides: &[
            "training.method=hybrid",
            "training.teacher.reward_weight=0.0",
            "training.teacher.distillation_weight=0.0",
            "training.pairs.loss=sft",
            "training.rehearsal.enabled=true",
        ],
    },
    Spec {
        name: "redo-dpo",
        about: "Trains on pairs of an accepted and a rejected reply only",
        trains: true,
        memory: false,
        overrides: &[
            "training.method=hybrid",
            "training.teacher.reward_weight=0.0",
            "training.teacher.distillation_weight=0.0",
            "training.pairs.loss=dpo",
            "training.rehearsal.enabled=false",
        ],
    },
    Spec {
        name: "redo-dpo-rehearsal",
        about: "Trains on pairs of an accepted and a rejected reply only, with rehearsal",
        trains: true,
        memory: false,
        overrides: &[
            "training.method=hybrid",
            "training.teacher.reward_weight=0.0",
            "training.teacher.distillation_weight=0.0",
            "training.pairs.loss=dpo",
            "training.rehearsal.enabled=true",
        ],
    },
    Spec {
        name: "binary-redo",
        about: "Trains on rewards and on pairs",
        trains: true,
        memory: false,
        overrides: &[
            "training.method=binary",
            "training.pairs.loss=dpo",
            "training.rehearsal.enabled=false",
        ],
    },
    Spec {
        name: "binary-redo-rehearsal",
        about: "Trains on rewards and on pairs, with rehearsal",
        trains: true,
        memory: false,
        overrides: &[
            "training.method=binary",
            "training.pairs.loss=dpo",
            "training.rehearsal.enabled=true",
        ],
    },
    Spec {
        name: "opd-redo",
        about: "Distils from the hinted teacher and trains on pairs",
        trains: true,
        memory: false,
        overrides: &[
            "training.method=opd",
            "training.teacher.source=reference",
            "training.pairs.loss=dpo",
            "training.rehearsal.enabled=false",
        ],
    },
    Spec {
        name: "opd-redo-rehearsal",
        about: "Distils from the hinted teacher and trains on pairs, with rehearsal",
        trains: true,
        memory: false,
        overrides: &[
            "training.method=opd",
            "training.teacher.source=reference",
            "training.pairs.loss=dpo",
            "training.rehearsal.enabled=true",
        ],
    },
    Spec {
        name: "binary-rehearsal",
        about: "Trains on rewards only, with rehearsal",
        trains: true,
        memory: false,
        overrides: &[
            "training.method=binary",
            "training.pairs.loss=none",
            "training.rehearsal.enabled=true",
        ],
    },
    Spec {
        name: "opd-rehearsal",
        about: "Distils from the hinted teacher only, on single tokens, with rehearsal",
        trains: true,
        memory: false,
        overrides: &[
            "training.method=opd",
            "training.teacher.source=reference",
            "training.pairs.loss=none",
            "training.rehearsal.enabled=true",
        ],
    },
    Spec {
        name: "opd-topk",
        about: "Distils from the hinted teacher only, by the reverse KL over 64 tokens and a tail",
        trains: true,
        memory: false,
        overrides: &[
            "training.method=opd-topk",
            "training.teacher.source=reference",
            "training.teacher.top_k=64",
            "training.teacher.top_k_from=student",
            "training.teacher.divergence=reverse",
            "training.pairs.loss=none",
            "training.rehearsal.enabled=false",
        ],
    },
    Spec {
        name: "opd-topk-rehearsal",
        about: "Distils from the hinted teacher only, by the reverse KL over 64 tokens and a tail, with rehearsal",
        trains: true,
        memory: false,
        overrides: &[
            "training.method=opd-topk",
            "training.teacher.source=reference",
            "training.teacher.top_k=64",
            "training.teacher.top_k_from=student",
            "training.teacher.divergence=reverse",
            "training.pairs.loss=none",
            "training.rehearsal.enabled=true",
        ],
    },
    Spec {
        name: "opd-topk-redo-sft",
        about: "Distils by the reverse KL and trains on accepted replies to complaints",
        trains: true,
        memory: false,
        overrides: &[
            "training.method=opd-topk",
            "training.teacher.source=reference",
            "training.teacher.top_k=64",
            "training.teacher.top_k_from=student",
            "training.teacher.divergence=reverse",
            "training.pairs.loss=sft",
            "training.rehearsal.enabled=false",
        ],
    },
    Spec {
        name: "opd-topk-redo-sft-rehearsal",
        about: "Distils by the reverse KL and trains on accepted replies to complaints, with rehearsal",
        trains: true,
        memory: false,
        overrides: &[
            "training.method=opd-topk",
            "training.teacher.source=reference",
            "training.teacher.top_k=64",
            "training.teacher.top_k_from=student",
            "training.teacher.divergence=reverse",
            "training.pairs.loss=sft",
            "training.rehearsal.enabled=true",
        ],
    },
    Spec {
        name: "hybrid-redo-sft-rehearsal",
        about: "Trains on rewards and on accepted replies to complaints and distils from the hinted teacher, with rehearsal",
        trains: true,
        memory: false,
        overrides: &[
            "training.method=hybrid",
            "training.teacher.source=reference",
            "training.pairs.loss=sft",
            "training.rehearsal.enabled=true",
        ],
    },
    Spec {
        name: "hybrid-redo-rehearsal",
        about: "Trains on rewards and on pairs and distils from the hinted teacher, with rehearsal",
        trains: true,
        memory: false,
        overrides: &[
            "training.method=hybrid",
            "training.teacher.source=reference",
            "training.pairs.loss=dpo",
            "training.rehearsal.enabled=true",
        ],
    },
    Spec {
        name: "configured",
        about: "Trains as the configuration says",
        trains: true,
        memory: false,
        overrides: &[],
    },
    Spec {
        name: "one-adapter",
        about: "The same, with one adapter for both of two people",
        trains: true,
        memory: false,
        overrides: &["training.adapters=shared"],
    },
    Spec {
        name: "memory",
        about: "The frozen model with earlier corrections in the system message",
        trains: false,
        memory: true,
        overrides: &[],
    },
    Spec {
        name: "inject",
        about: "The frozen model with the experience of the server in the system message",
        trains: false,
        memory: false,
        overrides: &["experience.mode=inject"],
    },
    Spec {
        name: "distill-experience",
        about: "Distils from the policy with its experience, by the reverse KL over 64 tokens and a tail, with rehearsal",
        trains: true,
        memory: false,
        overrides: &[
            "experience.mode=distill",
            "training.method=opd-topk",
            "training.teacher.source=policy",
            "training.teacher.top_k=64",
            "training.teacher.top_k_from=student",
            "training.teacher.divergence=reverse",
            "training.pairs.loss=none",
            "training.rehearsal.enabled=true",
        ],
    },
    Spec {
        name: "both-experience",
        about: "The same, with the experience in the system message of three conversations in four until the weights follow it",
        trains: true,
        memory: false,
        overrides: &[
            "experience.mode=both",
            "training.method=opd-topk",
            "training.teacher.source=policy",
            "training.teacher.top_k=64",
            "training.teacher.top_k_from=student",
            "training.teacher.divergence=reverse",
            "training.pairs.loss=none",
            "training.rehearsal.enabled=true",
        ],
    },
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
    pub fn overrides(self) -> &'static [&'static str] {
        SPECS[self.0].overrides
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
