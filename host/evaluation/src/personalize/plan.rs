//! What is run: arms, personas and seeds.

use std::str::FromStr;
use std::time::Duration;

use crate::conversation::ConversationOptions;
use crate::idle::WaitOptions;
use crate::persona::Track;
use crate::statistics::window;

/// A training method, or none. The arms of a run differ in nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arm {
    /// The frozen base model.
    Control,
    /// Rewards only.
    Binary,
    /// Distillation from the hinted teacher only, on single tokens.
    Opd,
    /// Rewards and distillation.
    Hybrid,
    /// Rewards and distillation over the student's top-k tokens, with a choice of hints.
    HybridTopk,
    /// The frozen base model with a client that puts the persona's corrections of earlier conversations into the system
    /// message.
    Memory,
}

impl Arm {
    /// All arms, in the order of reports.
    pub const ALL: [Arm; 6] = [
        Arm::Control,
        Arm::Binary,
        Arm::Opd,
        Arm::Hybrid,
        Arm::HybridTopk,
        Arm::Memory,
    ];
    /// The arms compared by default.
    pub const COMPARED: [Arm; 5] = [
        Arm::Control,
        Arm::Binary,
        Arm::Opd,
        Arm::Hybrid,
        Arm::HybridTopk,
    ];

    /// Name in reports and on the command line.
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

    /// One-line description.
    pub fn about(self) -> &'static str {
        match self {
            Arm::Control => "The frozen model",
            Arm::Binary => "Trains on rewards only",
            Arm::Opd => "Distils from the hinted teacher only, on single tokens",
            Arm::Hybrid => "Trains on rewards and distils from the hinted teacher",
            Arm::HybridTopk => {
                "Trains on rewards and distils from the hinted teacher over the top-k tokens, with a choice of hints"
            }
            Arm::Memory => "The frozen model with earlier corrections in the system message",
        }
    }

    /// Whether its server trains.
    pub fn trains(self) -> bool {
        !matches!(self, Arm::Control | Arm::Memory)
    }
}

/// Unknown arm name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown arm {0}")]
pub struct UnknownArm(String);

impl FromStr for Arm {
    type Err = UnknownArm;

    fn from_str(name: &str) -> Result<Self, UnknownArm> {
        let mut all = Arm::ALL.into_iter();
        all.find(|arm| arm.name() == name)
            .ok_or_else(|| UnknownArm(name.to_owned()))
    }
}

/// Options of the evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct PersonalizeOptions {
    /// The arms. Default: [`Arm::COMPARED`].
    pub arms: Vec<Arm>,
    /// The personas. Default: student and teacher.
    pub tracks: Vec<Track>,
    /// The first seed; the others follow it. Default: 1.
    pub first_seed: u64,
    /// Number of seeds. Default: 5.
    pub seeds: u32,
    /// Conversations per arm, persona and seed. Default: none, as many as the persona's target is stated for (36 of a
    /// student, 24 of a teacher).
    pub conversations: Option<usize>,
    /// Concurrent conversations. Default: 4.
    pub concurrency: usize,
    /// First replies sampled and averaged per conversation of an arm that does not train, to reduce the noise. Default:
    /// 8.
    pub control_draws: u32,
    /// Held-out prompts per probe set, run after the conversations; 0 = none. Default: 32.
    pub probes: usize,
    /// Corrections in the system message of the arm `memory`. Default: 8.
    pub memory_size: usize,
    /// `temperature` of requests. Default: none, the endpoint decides.
    pub temperature: Option<f32>,
    /// `max_tokens` of requests. Default: 256.
    pub max_tokens: Option<u32>,
    /// Timeout of one request. Default: 300 s.
    pub request_timeout: Duration,
    /// Waiting between rounds. Default timeout: 300 s, since many arms share a machine.
    pub wait: WaitOptions,
    /// Bounds of the targets.
    pub bounds: TargetBounds,
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
            memory_size: 8,
            temperature: None,
            max_tokens: Some(256),
            request_timeout: Duration::from_secs(300),
            wait: WaitOptions {
                timeout: Duration::from_secs(300),
                ..WaitOptions::default()
            },
            bounds: TargetBounds::default(),
        }
    }
}

/// Bounds of the targets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TargetBounds {
    /// Minimum mean score of the window at the mark, on every seed. Default: 0.8.
    pub at_least: f64,
    /// Maximum mean score of the frozen model at the start. Default: 0.3.
    pub from_at_most: f64,
    /// Maximum difference between the windows of the frozen model. Default: 0.12.
    pub control_within: f64,
    /// Maximum loss on unrelated prompts, as a share of the replies. Default: 0.02.
    pub forgets_at_most: f64,
}

impl Default for TargetBounds {
    fn default() -> Self {
        TargetBounds {
            at_least: 0.8,
            from_at_most: 0.3,
            control_within: 0.12,
            forgets_at_most: 0.02,
        }
    }
}

impl PersonalizeOptions {
    /// Number of conversations of a persona.
    pub fn conversations(&self, track: Track) -> usize {
        self.conversations.unwrap_or(track.mark()).max(1)
    }

    /// The conversation number at which the score is evaluated: that of the target, or the last one if there are fewer
    /// conversations.
    pub fn mark(&self, track: Track) -> usize {
        self.conversations(track).min(track.mark())
    }

    /// The conversations of the first window, counted from 0.
    pub fn first_window(&self, track: Track) -> std::ops::Range<usize> {
        0..window(self.mark(track))
    }

    /// The conversations of the window that ends at the mark, counted from 0: 25–36 of a student and 13–24 of a
    /// teacher, counted from 1. It never overlaps the first window.
    pub fn mark_window(&self, track: Track) -> std::ops::Range<usize> {
        let mark = self.mark(track);
        mark.saturating_sub(window(mark))..mark
    }

    /// The last conversations, counted from 0.
    pub fn last_window(&self, track: Track) -> std::ops::Range<usize> {
        let all = self.conversations(track);
        all.saturating_sub(window(all))..all
    }

    /// All cells: all arms of one seed before the next seed, so that partial results are comparable.
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

    /// Options of the conversations of a cell.
    pub(super) fn conversation_options(&self, cell: Cell) -> ConversationOptions {
        ConversationOptions {
            seed: cell.seed,
            draws: if cell.arm.trains() {
                1
            } else {
                self.control_draws.max(1)
            },
            memory_size: match cell.arm {
                Arm::Memory => self.memory_size,
                _ => 0,
            },
            temperature: self.temperature,
            max_tokens: self.max_tokens,
            ..ConversationOptions::default()
        }
    }
}

/// One arm with one persona and one seed: one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell {
    /// The arm.
    pub arm: Arm,
    /// The persona.
    pub track: Track,
    /// Seed of the persona, its problems and its requests; the same for all arms.
    pub seed: u64,
}

impl Cell {
    /// A name that is also a valid file name: `student-hybrid-3`.
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
    fn cells_are_ordered_by_seed() {
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
    fn names_parse_again() {
        for arm in Arm::ALL {
            assert_eq!(arm.name().parse::<Arm>(), Ok(arm));
        }
        for track in Track::ALL {
            assert_eq!(track.name().parse::<Track>(), Ok(track));
        }
        assert!("grpo".parse::<Arm>().is_err() && "pupil".parse::<Track>().is_err());
    }
}
