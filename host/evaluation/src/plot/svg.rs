//! Plots for an HTML page: inline SVG that uses the page's colours.

use std::fmt::Write;

use super::series::{Band, Series};

/// Size and texts of an SVG plot.
#[derive(Debug, Clone, PartialEq)]
pub struct SvgOptions {
    /// Width of the view box in pixels; the drawing scales. Default: 720.
    pub width: u32,
    /// Height of the view box in pixels. Default: 300.
    pub height: u32,
    /// Title for screen readers.
    pub title: String,
    /// Label of the horizontal axis.
    pub x_label: String,
    /// Label of the vertical axis.
    pub y_label: String,
    /// Shaded bands behind the lines, in the order of the series. Default: none.
    pub bands: Vec<Band>,
}

impl Default for SvgOptions {
    fn default() -> Self {
        SvgOptions {
            width: 720,
            height: 300,
            title: String::new(),
            x_label: String::new(),
            y_label: String::new(),
            bands: Vec::new(),
        }
    }
}

const LEFT: f64 = 52.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 44.0;

/// Draws a line per series and dots for each of `points` (same order as the series, may be shorter). Colours come from
/// the classes `s0`, `s1`, … of the page; axes and text use `currentColor`, so light and dark pages both work.
pub fn svg(series: &[Series], points: &[Series], options: &SvgOptions) -> String {
    let frame = Frame {
        width: f64::from(options.width.max(200)),
        height: f64::from(options.height.max(120)),
        count: series
            .iter()
            .chain(points)
            .map(|s| s.values.len())
            .max()
            .unwrap_or(0),
    };
    let mut out = String::new();
    let title = escape(&options.title);
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "<svg class=\"plot\" role=\"img\" viewBox=\"0 0 {} {}\" xmlns=\"http://www.w3.org/2000/svg\"><title>{title}</title>",
        frame.width, frame.height
    );
    axes(&mut out, &frame, options);
    for (at, band) in options.bands.iter().enumerate() {
        let mut outline = frame.points_of(&band.high);
        outline.extend(frame.points_of(&band.low).into_iter().rev());
        let _ = write!(
            out,
            "<polygon class=\"s{at}\" points=\"{}\" fill=\"currentColor\" fill-opacity=\"0.12\"/>",
            path(&outline)
        );
    }
    for (at, dots) in points.iter().enumerate() {
        for (x, y) in frame.points_of(&dots.values) {
            let _ = write!(
                out,
                "<circle class=\"s{at}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"currentColor\" fill-opacity=\"0.35\"/>"
            );
        }
    }
    for (at, line) in series.iter().enumerate() {
        let dash = dash(line);
        let _ = write!(
            out,
            "<polyline class=\"s{at}\" points=\"{}\" fill=\"none\" stroke=\"currentColor\" stroke-width=\"2\"{dash}/>",
            path(&frame.points_of(&line.values))
        );
    }
    legend(&mut out, series);
    out.push_str("</svg>");
    out
}

/// Turns an inline plot into a file of its own: the colours that a page would give it, on a white background.
pub(crate) fn standalone(plot: &str) -> String {
    const STYLE: &str = "<style>.plot{color:#222;font:12px system-ui,sans-serif}\
        .s0{color:#0a6b5d}.s1{color:#9a5b00}.s2{color:#2456a8}.s3{color:#8a2670}.s4{color:#b3261e}.s5{color:#5b5b5b}</style>\
        <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>";
    // After the opening tag of the drawing.
    plot.replacen('>', &format!(">{STYLE}"), 1)
}

struct Frame {
    width: f64,
    height: f64,
    count: usize,
}

impl Frame {
    fn x(&self, at: usize) -> f64 {
        let steps = self.count.saturating_sub(1).max(1) as f64;
        LEFT + at as f64 / steps * (self.width - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        let value = if value.is_finite() {
            value.clamp(0.0, 1.0)
        } else {
            0.0
        };
        TOP + (1.0 - value) * (self.height - TOP - BOTTOM)
    }

    fn points_of(&self, values: &[f64]) -> Vec<(f64, f64)> {
        values
            .iter()
            .enumerate()
            .map(|(at, value)| (self.x(at), self.y(*value)))
            .collect()
    }
}

fn path(points: &[(f64, f64)]) -> String {
    let pairs: Vec<String> = points
        .iter()
        .map(|(x, y)| format!("{x:.1},{y:.1}"))
        .collect();
    pairs.join(" ")
}

fn axes(out: &mut String, frame: &Frame, options: &SvgOptions) {
    let right = frame.width - RIGHT;
    for tick in 0..=4 {
        let value = f64::from(tick) / 4.0;
        let y = frame.y(value);
        let _ = write!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"currentColor\" stroke-opacity=\"{}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"currentColor\">{value:.2}</text>",
            if tick == 0 { "0.8" } else { "0.15" },
            LEFT - 6.0,
            y + 4.0
        );
    }
    let floor = frame.y(0.0);
    for number in ticks(frame.count) {
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"currentColor\">{number}</text>",
            frame.x(number - 1),
            floor + 16.0
        );
    }
    let _ = write!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"currentColor\">{}</text>",
        (LEFT + right) / 2.0,
        frame.height - 8.0,
        escape(&options.x_label)
    );
    let middle = frame.y(0.5);
    let _ = write!(
        out,
        "<text transform=\"translate(14 {middle:.1}) rotate(-90)\" text-anchor=\"middle\" fill=\"currentColor\">{}</text>",
        escape(&options.y_label)
    );
}

/// Numbers of the axis: 1, the last, and round ones between them that do not touch the last.
fn ticks(count: usize) -> Vec<usize> {
    let every = match count {
        0..=12 => 1,
        13..=30 => 5,
        31..=120 => 10,
        _ => (count / 10).max(1),
    };
    (1..=count)
        .filter(|n| *n == 1 || *n == count || (n % every == 0 && n + every / 2 <= count))
        .collect()
}

fn dash(line: &Series) -> &'static str {
    if line.dotted {
        " stroke-dasharray=\"5 4\""
    } else {
        ""
    }
}

fn legend(out: &mut String, series: &[Series]) {
    let mut x = LEFT;
    for (at, line) in series.iter().enumerate() {
        let dash = dash(line);
        let _ = write!(
            out,
            "<g class=\"s{at}\"><line x1=\"{x:.1}\" x2=\"{:.1}\" y1=\"16\" y2=\"16\" stroke=\"currentColor\" stroke-width=\"2\"{dash}/></g><text x=\"{:.1}\" y=\"20\" fill=\"currentColor\">{}</text>",
            x + 24.0,
            x + 30.0,
            escape(&line.name)
        );
        x += 48.0 + 7.0 * line.name.chars().count() as f64;
    }
}

/// Escapes text for HTML and SVG, also in quoted attributes. Control characters are replaced, and so are those that reorder
/// the text around them.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' => out.push('\u{FFFD}'),
            c if c.is_control() => out.push('\u{FFFD}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn svg_golden() {
        let line = |name: &str, values: &[f64], dotted| Series {
            name: name.into(),
            values: values.to_vec(),
            dotted,
        };
        let output = svg(
            &[
                line("trained", &[0.0, 0.5, 1.0], false),
                line("control <frozen>", &[0.25, 0.25, 0.25], true),
            ],
            &[line("", &[0.0, 1.0, 1.0], false)],
            &SvgOptions {
                title: "Score & conversation".into(),
                x_label: "conversation".into(),
                y_label: "score".into(),
                ..SvgOptions::default()
            },
        );
        assert_eq!(
            output,
            include_str!("../../goldens/plot.svg").trim_end(),
            "\n{output}"
        );
    }

    #[test]
    fn a_band_polygon_follows_its_upper_and_lower_edge() {
        let options = SvgOptions {
            bands: vec![Band {
                low: vec![0.0, 0.5],
                high: vec![0.5, 1.0],
            }],
            ..SvgOptions::default()
        };
        let output = svg(&[], &[], &options);
        // Without a series the axis has no length: both ends are identified by their heights.
        let band = output.split("<polygon").nth(1).unwrap();
        let points = band.split('"').nth(3).unwrap();
        let heights: Vec<&str> = points.split([' ', ',']).skip(1).step_by(2).collect();
        assert_eq!(heights, ["145.0", "34.0", "145.0", "256.0"], "{points}");
    }

    #[test]
    fn text_is_escaped_and_has_no_control_characters() {
        let hostile = "</title><script>'\"&\u{1b}[2J\u{202E}\r\n";
        assert_eq!(
            escape(hostile),
            "&lt;/title&gt;&lt;script&gt;&#39;&quot;&amp;\u{FFFD}[2J\u{FFFD}\u{FFFD}\n"
        );
    }

    #[test]
    fn names_are_escaped() {
        let hostile = Series {
            name: "</svg><script>x</script>\u{7}".into(),
            values: vec![0.5],
            dotted: false,
        };
        let output = svg(&[hostile], &[], &SvgOptions::default());
        assert!(!output.contains("<script") && !output.contains('\u{7}'));
        assert_eq!(output.matches("</svg>").count(), 1);
    }

    #[test]
    fn ticks_do_not_overlap() {
        assert_eq!(ticks(0), Vec::<usize>::new());
        assert_eq!(ticks(60), vec![1, 10, 20, 30, 40, 50, 60]);
        assert_eq!(ticks(63), vec![1, 10, 20, 30, 40, 50, 63]);
    }
}
