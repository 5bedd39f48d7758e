//! What is run: which arms, whose conversations, which seeds.

use std::str::FromStr;
use std::time::Duration;

use crate::conversation::Manner;
use crate::persona::Track;
use crate::settling::Patience;
use crate::statistics::window;

/// A way of learning, or none. Arms of one run differ in nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arm {
    /// The frozen base.
    Control,
    /// Rewards alone.
    Binary,
    /// Distillation from the hinted teacher alone, token by token.
    Opd,
    /// Rewards and distillation.
    Hybrid,
    /// Rewards and distillation over the student's likeliest tokens, with a choice of hints.
    HybridTopk,
    /// The frozen base, whose client puts the persona's corrections of earlier conversations into a system
    /// message of each new one.
    Memory,
}

impl Arm {
    /// All, in the order of reports.
    pub const ALL: [Arm; 6] = [
        Arm::Control,
        Arm::Binary,
        Arm::Opd,
        Arm::Hybrid,
        Arm::HybridTopk,
        Arm::Memory,
    ];
    /// Those that are compared when none are named.
    pub const COMPARED: [Arm; 5] = [
        Arm::Control,
        Arm::Binary,
        Arm::Opd,
        Arm::Hybrid,
        Arm::HybridTopk,
    ];

    /// Its name in reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Arm::Control => "control",
            Arm::Binary => "binary",
            Arm::Opd => "opd",
            Arm::Hybrid => "hybrid",
            Arm::HybridTopk => "hybrid-topk",
            Arm::Memory => "memory",
        }
    }

    /// One line about it.
    pub fn about(self) -> &'static str {
        match self {
            Arm::Control => "The frozen policy",
            Arm::Binary => "Learns from rewards alone",
            Arm::Opd => "Learns from the hinted teacher alone, token by token",
            Arm::Hybrid => "Learns from rewards and the hinted teacher",
            Arm::HybridTopk => {
                "Learns from rewards and the hinted teacher, over the likeliest tokens, with a choice of hints"
            }
            Arm::Memory => "The frozen policy, with earlier corrections in a system message",
        }
    }

    /// Whether its server trains.
    pub fn learns(self) -> bool {
        !matches!(self, Arm::Control | Arm::Memory)
    }
}

/// An arm that there is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no arm {0}")]
pub struct UnknownArm(String);

impl FromStr for Arm {
    type Err = UnknownArm;

    fn from_str(name: &str) -> Result<Self, UnknownArm> {
        let mut all = Arm::ALL.into_iter();
        all.find(|arm| arm.name() == name)
            .ok_or_else(|| UnknownArm(name.to_owned()))
    }
}

/// How the evaluation is run.
#[derive(Debug, Clone, PartialEq)]
pub struct PersonalizeOptions {
    /// What is compared. Default: [`Arm::COMPARED`].
    pub arms: Vec<Arm>,
    /// Who talks. Default: student and teacher.
    pub tracks: Vec<Track>,
    /// The first seed; the others follow it. Default: 1.
    pub first_seed: u64,
    /// How many seeds. Default: 5.
    pub seeds: u32,
    /// Conversations of each arm, persona and seed. Default: none, as many as the aim of the persona is
    /// stated for (36 of a student, 24 of a teacher).
    pub conversations: Option<usize>,
    /// Conversations at a time. Default: 4.
    pub concurrency: usize,
    /// First replies that are drawn and averaged for each conversation of an arm that does not learn; what
    /// moves there is chance alone. Default: 8.
    pub control_draws: u32,
    /// Held-out prompts of each probe set that are asked when an arm has ended; 0 = none. Default: 32.
    pub probes: usize,
    /// Corrections that the arm `memory` puts into its system message. Default: 8.
    pub remembered: usize,
    /// The `temperature` of requests. Default: none, the endpoint decides.
    pub temperature: Option<f32>,
    /// The `max_tokens` of requests. Default: 256.
    pub max_tokens: Option<u32>,
    /// Longest time for one request. Default: 300 s.
    pub request_limit: Duration,
    /// The waits between rounds. Default limit: 300 s, since many arms share a machine.
    pub patience: Patience,
    /// What counts as having learned.
    pub bounds: AimBounds,
}

impl Default for PersonalizeOptions {
    fn default() -> Self {
        PersonalizeOptions {
            arms: Arm::COMPARED.into(),
            tracks: Track::ALL.into(),
            first_seed: 1,
            seeds: 5,
            conversations: None,
            concurrency: 4,
            control_draws: 8,
            probes: 32,
            remembered: 8,
            temperature: None,
            max_tokens: Some(256),
            request_limit: Duration::from_secs(300),
            patience: Patience {
                limit: Duration::from_secs(300),
                ..Patience::default()
            },
            bounds: AimBounds::default(),
        }
    }
}

/// The figures that the aims are stated in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AimBounds {
    /// Mean score of the window at the mark, on every seed. Default: 0.8.
    pub at_least: f64,
    /// Mean score of the frozen policy, from which it starts. Default: 0.3.
    pub from_at_most: f64,
    /// Largest difference between the windows of the frozen policy. Default: 0.12.
    pub control_within: f64,
    /// Largest loss of a probe that is not at stake, as a share of its replies. Default: 0.02.
    pub forgets_at_most: f64,
}

impl Default for AimBounds {
    fn default() -> Self {
        AimBounds {
            at_least: 0.8,
            from_at_most: 0.3,
            control_within: 0.12,
            forgets_at_most: 0.02,
        }
    }
}

impl PersonalizeOptions {
    /// Conversations that are held for a persona.
    pub fn conversations(&self, track: Track) -> usize {
        self.conversations.unwrap_or(track.mark()).max(1)
    }

    /// The conversation at which the score counts: the one that the aim is stated for, or the last where
    /// fewer are held.
    pub fn mark(&self, track: Track) -> usize {
        self.conversations(track).min(track.mark())
    }

    /// The conversations of the first window, counted from 0.
    pub fn first_window(&self, track: Track) -> std::ops::Range<usize> {
        0..window(self.mark(track))
    }

    /// The conversations of the window that ends at the mark, counted from 0: 25–36 of a student and 13–24
    /// of a teacher, counted from 1. It never overlaps with the first.
    pub fn mark_window(&self, track: Track) -> std::ops::Range<usize> {
        let mark = self.mark(track);
        mark.saturating_sub(window(mark))..mark
    }

    /// The last conversations that are held, counted from 0.
    pub fn last_window(&self, track: Track) -> std::ops::Range<usize> {
        let all = self.conversations(track);
        all.saturating_sub(window(all))..all
    }

    /// Everything that is run: all arms of one seed before the next seed, so that what is there after an
    /// interruption can be compared.
    pub fn cells(&self) -> Vec<Cell> {
        let seeds = (0..u64::from(self.seeds)).map(|at| self.first_seed.wrapping_add(at));
        let mut cells = Vec::new();
        for seed in seeds {
            for track in &self.tracks {
                for arm in &self.arms {
                    cells.push(Cell {
                        arm: *arm,
                        track: *track,
                        seed,
                    });
                }
            }
        }
        cells
    }

    /// How the conversations of a cell are held.
    pub(super) fn manner(&self, cell: Cell) -> Manner {
        Manner {
            seed: cell.seed,
            draws: if cell.arm.learns() {
                1
            } else {
                self.control_draws.max(1)
            },
            remembered: match cell.arm {
                Arm::Memory => self.remembered,
                _ => 0,
            },
            temperature: self.temperature,
            max_tokens: self.max_tokens,
            ..Manner::default()
        }
    }
}

/// One arm with one persona and one seed: one server from its start to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell {
    /// The arm.
    pub arm: Arm,
    /// Who talks.
    pub track: Track,
    /// Seed of the persona, its problems and its requests; the same for all arms.
    pub seed: u64,
}

impl Cell {
    /// A name that is a file name, too: `student-hybrid-3`.
    pub fn name(self) -> String {
        format!("{}-{}-{}", self.track.name(), self.arm.name(), self.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_end_at_the_mark() {
        let mut options = PersonalizeOptions::default();
        let windows = |o: &PersonalizeOptions, track| {
            (o.mark(track), o.first_window(track), o.mark_window(track))
        };
        assert_eq!(windows(&options, Track::Student), (36, 0..12, 24..36));
        assert_eq!(windows(&options, Track::Teacher), (24, 0..12, 12..24));
        options.conversations = Some(60);
        assert_eq!(windows(&options, Track::Student), (36, 0..12, 24..36));
        assert_eq!(options.last_window(Track::Student), 48..60);
        options.conversations = Some(8);
        assert_eq!(windows(&options, Track::Teacher), (8, 0..4, 4..8));
        options.conversations = Some(1);
        assert_eq!(windows(&options, Track::Teacher), (1, 0..1, 0..1));
    }

    #[test]
    fn a_seed_is_finished_before_the_next() {
        let options = PersonalizeOptions {
            arms: vec![Arm::Control, Arm::Hybrid],
            first_seed: 7,
            seeds: 2,
            ..PersonalizeOptions::default()
        };
        let names: Vec<String> = options.cells().iter().map(|c| c.name()).collect();
        assert_eq!(
            names,
            [
                "student-control-7",
                "student-hybrid-7",
                "teacher-control-7",
                "teacher-hybrid-7",
                "student-control-8",
                "student-hybrid-8",
                "teacher-control-8",
                "teacher-hybrid-8"
            ]
        );
        assert_eq!(PersonalizeOptions::default().cells().len(), 50);
    }

    #[test]
    fn names_are_read_again() {
        for arm in Arm::ALL {
            assert_eq!(arm.name().parse::<Arm>(), Ok(arm));
        }
        for track in Track::ALL {
            assert_eq!(track.name().parse::<Track>(), Ok(track));
        }
        assert!("grpo".parse::<Arm>().is_err() && "pupil".parse::<Track>().is_err());
    }
}
