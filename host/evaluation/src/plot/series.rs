//! What a plot shows.

/// One line of a plot.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// One value per conversation, in order; clamped to [0, 1] when drawn.
    pub values: Vec<f64>,
    /// Drawn dotted, for reference lines.
    pub dotted: bool,
}

/// Range of the curves behind one line.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Band {
    /// Lower edge, one value per conversation.
    pub low: Vec<f64>,
    /// Upper edge.
    pub high: Vec<f64>,
}
