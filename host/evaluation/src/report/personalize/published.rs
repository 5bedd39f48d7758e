//! Published results of OpenClaw-RL's own methods, for orientation.
//!
//! They were measured on another model (Qwen3-4B-Thinking-2507) with another metric: in the first table a language
//! model plays the user and rates the first reply; the second counts sessions until the preference held in three in a
//! row. They are not compared automatically.

/// One published table: caption, header, rows.
pub(super) struct PublishedTable {
    pub(super) caption: &'static str,
    pub(super) rows: &'static [&'static [&'static str]],
}

pub(super) const PUBLISHED: &[PublishedTable] = &[
    PublishedTable {
        caption: "OpenClaw-RL, first report: score of the first reply as rated by the simulated user (a language model), 0 to 1",
        rows: &[
            &["", "base", "8 updates", "16 updates"],
            &["Binary RL, student", "0.17", "0.25", "0.23"],
            &["OPD, student", "0.17", "0.25", "0.72"],
            &["combined, student", "0.17", "0.76", "0.81"],
            &["combined, teacher", "0.22", "0.90", "–"],
        ],
    },
    PublishedTable {
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
