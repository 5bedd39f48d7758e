//! What OpenClaw-RL has published about its own methods, to be read beside ours.
//!
//! They are theirs, on another model (Qwen3-4B-Thinking-2507) and with another measure: in the first table a
//! language model plays the user and rates the first reply, in the second the count is of sessions until the
//! preference held in three in a row. Nothing here is compared by program.

/// One table of theirs: caption, header, rows.
pub(super) struct Published {
    pub(super) caption: &'static str,
    pub(super) rows: &'static [&'static [&'static str]],
}

pub(super) const PUBLISHED: &[Published] = &[
    Published {
        caption: "OpenClaw-RL, first report: score of the first reply as rated by the simulated user (a language model), 0 to 1",
        rows: &[
            &["", "base", "8 updates", "16 updates"],
            &["Binary RL, student", "0.17", "0.25", "0.23"],
            &["OPD, student", "0.17", "0.25", "0.72"],
            &["combined, student", "0.17", "0.76", "0.81"],
            &["combined, teacher", "0.22", "0.90", "–"],
        ],
    },
    Published {
        caption: "OpenClaw-RL, second report: sessions until the preference held in three in a row, average of 5 trials, fewer is better",
        rows: &[
            &["", "users together", "each user apart"],
            &["hybrid", "10.3", "15.0"],
            &["GRPO / Binary", "14.1", "21.1"],
            &["OPD", "29.7", "29.4"],
            &["Mem0 (memory)", "14.5", "15.1"],
            &["Cognee (memory)", "14.9", "15.1"],
        ],
    },
];
