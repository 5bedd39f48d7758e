//! SVG plots of series of points. The script draws the same plots (`script/chart.js`) when it has newer data.

use std::fmt::{self, Write as _};

use super::html::{HtmlText, format_number};

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 150.0;
const LEFT: f64 = 44.0;
const RIGHT: f64 = 8.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 20.0;
/// Values in one point of the running mean.
const WINDOW: usize = 16;

/// How the points of a series are drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// A dot per point.
    Dots,
    /// A line through the points.
    Line,
    /// Horizontal lines: a value holds until the next point.
    Steps,
}

/// Points of one color, in ascending order of x.
pub(super) struct Series {
    /// In the legend, and the class of the element.
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    pub(super) points: Vec<(f64, f64)>,
}

/// A plot with a title and its series.
pub(super) struct Plot {
    pub(super) title: &'static str,
    /// What x counts.
    pub(super) x: &'static str,
    /// Instead of a plot without points.
    pub(super) empty: &'static str,
    pub(super) series: Vec<Series>,
}

/// The range of an axis; never empty.
struct Range {
    low: f64,
    high: f64,
}

impl Range {
    fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        if low > high {
            return None;
        }
        // A constant is drawn in the middle.
        let margin = if low == high {
            low.abs().max(1.0) / 2.0
        } else {
            0.0
        };
        Some(Self {
            low: low - margin,
            high: high + margin,
        })
    }

    /// The position of a value, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }
}

impl Plot {
    /// Writes the plot as a figure. Points that are not finite are left out.
    pub(super) fn write(&self, page: &mut String) -> fmt::Result {
        write!(page, "<figure><figcaption>{}", HtmlText(self.title))?;
        for series in &self.series {
            write!(page, " <span class=\"legend {0}\">{0}</span>", series.name)?;
        }
        page.push_str("</figcaption>");
        let points = || self.series.iter().flat_map(|series| finite(&series.points));
        let across = Range::of(points().map(|(x, _)| x));
        let up = Range::of(points().map(|(_, y)| y));
        match (across, up) {
            (Some(across), Some(up)) => self.write_svg(page, &across, &up)?,
            _ => write!(page, "<p class=\"none\">{}</p>", HtmlText(self.empty))?,
        }
        page.push_str("</figure>");
        Ok(())
    }

    fn write_svg(&self, page: &mut String, across: &Range, up: &Range) -> fmt::Result {
        let x = |value: f64| LEFT + across.place(value) * (WIDTH - LEFT - RIGHT);
        let y = |value: f64| HEIGHT - BOTTOM - up.place(value) * (HEIGHT - TOP - BOTTOM);
        write!(
            page,
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            HtmlText(self.title)
        )?;
        let middle = f64::midpoint(up.low, up.high);
        let has_fraction = |value: f64| value.fract() != 0.0;
        let counts = !has_fraction(up.low) && !has_fraction(up.high) && up.high - up.low > 2.0;
        let between = Some(middle).filter(|middle| !(counts && has_fraction(*middle)));
        for value in [Some(up.low), between, Some(up.high)].into_iter().flatten() {
            write!(
                page,
                "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 5.0,
                y(value) + 4.0,
                format_number(value),
                at = y(value),
            )?;
        }
        write!(
            page,
            "<text x=\"{LEFT}\" y=\"{at}\">{x_name}</text>",
            at = HEIGHT - 5.0,
            x_name = HtmlText(self.x),
        )?;
        for series in &self.series {
            let points: Vec<(f64, f64)> = finite(&series.points)
                .map(|(at, value)| (x(at), y(value)))
                .collect();
            if series.shape == Shape::Dots || points.len() == 1 {
                for (x, y) in &points {
                    write!(
                        page,
                        "<circle class=\"{}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"/>",
                        series.name
                    )?;
                }
                continue;
            }
            write!(page, "<polyline class=\"{}\" points=\"", series.name)?;
            let mut held = None;
            for (x, y) in &points {
                if let Some(held) = held
                    && series.shape == Shape::Steps
                {
                    write!(page, "{x:.1},{held:.1} ")?;
                }
                write!(page, "{x:.1},{y:.1} ")?;
                held = Some(*y);
            }
            page.push_str("\"/>");
        }
        page.push_str("</svg>");
        Ok(())
    }
}

fn finite(points: &[(f64, f64)]) -> impl Iterator<Item = (f64, f64)> {
    let points = points.iter().copied();
    points.filter(|(x, y)| x.is_finite() && y.is_finite())
}

/// The mean of each value and up to `WINDOW - 1` before it.
pub(super) fn running_mean(values: &[f32]) -> Vec<f64> {
    (1..=values.len())
        .filter_map(|end| values.get(end.saturating_sub(WINDOW)..end))
        .map(|window| {
            window.iter().map(|value| f64::from(*value)).sum::<f64>() / window.len() as f64
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(shape: Shape, points: Vec<(f64, f64)>) -> String {
        let plot = Plot {
            title: "Loss",
            x: "step",
            empty: "No steps yet.",
            series: vec![Series {
                name: "last",
                shape,
                points,
            }],
        };
        let mut page = String::new();
        plot.write(&mut page).unwrap();
        page
    }

    #[test]
    fn running_mean_uses_a_window() {
        let mut rewards = vec![-1.0; 16];
        rewards.extend([1.0; 16]);
        let means = running_mean(&rewards);
        assert_eq!(means[0], -1.0);
        assert_eq!(means[23], 0.0);
        assert_eq!(means[31], 1.0);
    }

    #[test]
    fn every_dot_is_drawn() {
        for count in [1, 2, 300] {
            let points = (0..count).map(|index| (f64::from(index), 0.5)).collect();
            let page = written(Shape::Dots, points);
            assert_eq!(page.matches("<circle").count(), count as usize);
            assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
        }
    }

    #[test]
    fn values_hold_until_the_next_step() {
        let page = written(Shape::Steps, vec![(0.0, 1.0), (1.0, 2.0)]);
        assert!(
            page.contains("points=\"44.0,130.0 472.0,130.0 472.0,10.0 \""),
            "{page}"
        );
    }

    #[test]
    fn points_that_are_not_finite_are_left_out() {
        let page = written(
            Shape::Line,
            vec![
                (0.0, f64::NAN),
                (1.0, 2.0),
                (2.0, f64::INFINITY),
                (3.0, 4.0),
            ],
        );
        assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
        assert_eq!(page.matches("<polyline").count(), 1);
        assert!(written(Shape::Line, vec![(0.0, f64::NAN)]).contains("No steps yet."));
    }
}
