//! Line plots of scores in [0, 1]: for a terminal and for a page.
//!
//! Two renderings of one thing and no plotting library: a plot here is a handful of polylines over
//! conversation numbers. Neither rendering decides anything about the data.

mod svg;
mod terminal;

pub(crate) use self::svg::escape;
pub use self::svg::{SvgOptions, svg};
pub use self::terminal::{Glyphs, TerminalOptions, terminal};

/// One line of a plot.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// One value per conversation, in order; drawn clamped to [0, 1].
    pub values: Vec<f64>,
    /// Drawn dotted, for what the solid line is compared with.
    pub dotted: bool,
}

/// Between which values the curves of one line lie.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Band {
    /// The lower edge, one value per conversation.
    pub low: Vec<f64>,
    /// The upper edge.
    pub high: Vec<f64>,
}
