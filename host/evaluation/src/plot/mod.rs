//! Line plots of scores in [0, 1], for a terminal and for an HTML page.
//!
//! Plots are a few polylines over conversation numbers, rendered without a plotting library.

mod series;
mod svg;
mod terminal;

pub use self::series::{Band, Series};
pub(crate) use self::svg::standalone;
pub use self::svg::{SvgOptions, escape, svg};
pub use self::terminal::{Glyphs, TerminalOptions, terminal};
