//! Line plots of scores in [0, 1], for a terminal and for an HTML page.
//!
//! Plots are a few polylines over conversation numbers, rendered without a plotting library.

mod svg;
mod terminal;

pub use self::svg::{SvgOptions, svg};
pub(crate) use self::svg::{escape, standalone};
pub use self::terminal::{Glyphs, TerminalOptions, terminal};

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
