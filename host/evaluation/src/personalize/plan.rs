//! What is run: arms, personas and seeds.

use std::time::Duration;

use super::arm::Arm;
use crate::conversation::ConversationOptions;
use crate::idle::WaitOptions;
use crate::persona::Track;
use crate::statistics::window;
use crate::wish::Wish;

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
    /// student, 24 of a teacher, 36 of a person with a wish, 48 of one who takes it back after 24).
    pub conversations: Option<usize>,
    /// Concurrent conversations. Default: 4.
    pub concurrency: usize,
    /// First replies sampled and averaged per conversation of an arm that does not train, to reduce the noise. Default:
    /// 8.
    pub control_draws: u32,
    /// Fresh tasks whose first replies are scored after the conversations; 0 = none. Default: 64.
    pub fresh: usize,
    /// Held-out prompts per probe set, run after the conversations; 0 = none. Default: 32.
    pub probes: usize,
    /// Corrections in the system message of the arm `memory`. Default: 8.
    pub memory_size: usize,
    /// `temperature` of requests. Default: none, the endpoint decides.
    pub temperature: Option<f32>,
    /// `max_tokens` of requests. Default: 256.
    pub max_tokens: Option<u32>,
    /// Timeout of one request. Default: 15 min.
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
            tracks: Track::EMBEDDED.into(),
            first_seed: 1,
            seeds: 5,
            conversations: None,
            concurrency: 4,
            control_draws: 8,
            fresh: 64,
            probes: 32,
            memory_size: 8,
            temperature: None,
            max_tokens: Some(256),
            request_timeout: Duration::from_secs(900),
            wait: WaitOptions::default(),
            bounds: TargetBounds::default(),
        }
    }
}

impl PersonalizeOptions {
    /// The defaults for people with these wishes and a real model, whose steps take seconds: fewer polls and
    /// replies of frozen arms.
    pub fn of_wishes(wishes: &[Wish]) -> PersonalizeOptions {
        PersonalizeOptions {
            arms: Arm::REAL.into(),
            tracks: wishes.iter().copied().map(Track::Wish).collect(),
            control_draws: 1,
            probes: 16,
            max_tokens: Some(WISH_MAX_TOKENS),
            wait: WaitOptions {
                poll_interval: Duration::from_millis(400),
                ..WaitOptions::default()
            },
            ..PersonalizeOptions::default()
        }
    }
}

/// `max_tokens` of a person with a wish: enough to tell a long reply from a short one.
pub(crate) const WISH_MAX_TOKENS: u32 = 160;

/// Bounds of the targets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TargetBounds {
    /// Minimum mean score of the window at the mark, on every seed. Default: 0.8.
    pub at_least: f64,
    /// Maximum mean score of the frozen model at the start. Default: 0.3.
    pub from_at_most: f64,
    /// Maximum difference between the windows of the frozen model. Default: 0.12.
    pub control_within: f64,
    /// Maximum loss on unrelated prompts, as a share of the replies: the lower end of the interval of the mean over all
    /// probes must not be below it. Default: 0.05.
    pub forgets_at_most: f64,
    /// Maximum loss on explicit requests for the opposite of a wish, likewise. Default: 0.15.
    pub opposite_loses_at_most: f64,
    /// Maximum that an arm scores below the frozen model, likewise, once a wish is taken back. Default: 0.15.
    pub latest_wish_loses_at_most: f64,
    /// Maximum share of the frozen model's replies about the question that a wish may cost. Default: 0.1.
    pub answers_lose_at_most: f64,
}

impl Default for TargetBounds {
    fn default() -> Self {
        TargetBounds {
            at_least: 0.8,
            from_at_most: 0.3,
            control_within: 0.12,
            forgets_at_most: 0.05,
            opposite_loses_at_most: 0.15,
            latest_wish_loses_at_most: 0.15,
            answers_lose_at_most: 0.1,
        }
    }
}

impl PersonalizeOptions {
    /// Number of conversations of a persona.
    pub fn conversations(&self, track: Track) -> usize {
        self.conversations.unwrap_or(track.conversations()).max(1)
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

    /// All cells: all arms of one seed before the next seed, so that partial results are comparable. Two people who share
    /// a server share a cell, that of [`Track::OfTwo`].
    pub fn cells(&self) -> Vec<Cell> {
        let seeds = (0..u64::from(self.seeds)).map(|at| self.first_seed.wrapping_add(at));
        let mut cells = Vec::new();
        for seed in seeds {
            let first = |track: &&Track| !matches!(track, Track::Opposite(_));
            for track in self.tracks.iter().filter(first) {
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
            memory_size: if cell.arm.remembers() {
                self.memory_size
            } else {
                0
            },
            temperature: self.temperature,
            max_tokens: self.max_tokens,
            ..ConversationOptions::default()
        }
    }
}

/// One arm with one persona, or with two people who share a server, and one seed: one server.
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

    /// The cell as the person sees it who shares the server, if there is one.
    pub fn of_other(self) -> Option<Cell> {
        let track = self.track.other()?;
        Some(Cell { track, ..self })
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
        options.conversations = None;
        let taken_back = Track::TakenBack(Wish::Short);
        assert_eq!(windows(&options, taken_back), (24, 0..12, 12..24));
        assert_eq!(options.last_window(taken_back), 36..48);
        options.conversations = Some(1);
        assert_eq!(windows(&options, Track::Teacher), (1, 0..1, 0..1));
    }

    #[test]
    fn cells_are_ordered_by_seed() {
        let options = PersonalizeOptions {
            arms: vec![Arm::CONTROL, Arm::HYBRID],
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
}
