//! Plots of text characters.

use super::series::Series;

/// Characters of a plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Glyphs {
    /// Braille dots, two by four per cell.
    Braille,
    /// ASCII only.
    Ascii,
}

/// Size and characters of a plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalOptions {
    /// Total columns, including axis labels; at least 24.
    pub width: usize,
    /// Rows of the plotting area; at least 4.
    pub height: usize,
    /// The characters. Default: braille.
    pub glyphs: Glyphs,
}

impl Default for TerminalOptions {
    fn default() -> Self {
        TerminalOptions {
            width: 72,
            height: 12,
            glyphs: Glyphs::Braille,
        }
    }
}

/// Columns left of the plotting area: a label of three characters, a space and the axis.
const MARGIN: usize = 5;
const ASCII_MARKS: [char; 4] = ['*', 'o', '+', 'x'];

/// Draws the series over a common axis; lines have no trailing blanks.
pub fn terminal(series: &[Series], options: TerminalOptions) -> String {
    let width = options.width.max(24) - MARGIN;
    let height = options.height.max(4);
    let count = series.iter().map(|s| s.values.len()).max().unwrap_or(0);
    let mut canvas = Canvas::new(width, height, options.glyphs);
    // In reverse order, so that the first series is drawn on top.
    for (at, line) in series.iter().enumerate().rev() {
        canvas.draw(line, at, count);
    }
    let mut out = String::new();
    for (row, cells) in canvas.rows().into_iter().enumerate() {
        let share = 1.0 - row as f64 / (height - 1) as f64;
        let has_label = row == 0 || row == height - 1 || row == (height - 1) / 2;
        let label = if has_label {
            format!("{share:.1}")
        } else {
            String::new()
        };
        push_line(
            &mut out,
            &format!("{label:>3} {}{cells}", axis(options.glyphs, has_label)),
        );
    }
    push_line(&mut out, &format!("    {}", floor(options.glyphs, width)));
    let last = count.to_string();
    let gap = width.saturating_sub(1 + last.len());
    push_line(&mut out, &format!("     1{}{last}", " ".repeat(gap)));
    for line in legend(series, options.glyphs, width) {
        push_line(&mut out, &format!("     {line}"));
    }
    out
}

fn push_line(out: &mut String, line: &str) {
    out.push_str(line.trim_end());
    out.push('\n');
}

fn axis(glyphs: Glyphs, has_label: bool) -> char {
    match (glyphs, has_label) {
        (Glyphs::Braille, true) => '┤',
        (Glyphs::Braille, false) => '│',
        (Glyphs::Ascii, true) => '+',
        (Glyphs::Ascii, false) => '|',
    }
}

fn floor(glyphs: Glyphs, width: usize) -> String {
    match glyphs {
        Glyphs::Braille => format!("└{}", "─".repeat(width)),
        Glyphs::Ascii => format!("+{}", "-".repeat(width)),
    }
}

/// All names on one line if they fit, otherwise one line each, truncated to the width.
fn legend(series: &[Series], glyphs: Glyphs, width: usize) -> Vec<String> {
    let entries: Vec<String> = series
        .iter()
        .enumerate()
        .map(|(at, line)| {
            let sample = match (glyphs, line.dotted) {
                (Glyphs::Braille, false) => "━━".to_owned(),
                (Glyphs::Braille, true) => "┄┄".to_owned(),
                (Glyphs::Ascii, _) => ascii_mark(at).to_string(),
            };
            format!("{sample} {}", line.name)
                .chars()
                .take(width)
                .collect()
        })
        .collect();
    let joined = entries.join("   ");
    if joined.chars().count() <= width {
        vec![joined]
    } else {
        entries
    }
}

fn ascii_mark(at: usize) -> char {
    ASCII_MARKS[at % ASCII_MARKS.len()]
}

/// A grid of dots: two by four per cell in braille, one in ASCII.
struct Canvas {
    glyphs: Glyphs,
    columns: usize,
    across: usize,
    down: usize,
    cells: Vec<u32>,
}

impl Canvas {
    fn new(columns: usize, rows: usize, glyphs: Glyphs) -> Canvas {
        let (across, down) = match glyphs {
            Glyphs::Braille => (2, 4),
            Glyphs::Ascii => (1, 1),
        };
        Canvas {
            glyphs,
            columns,
            across: columns * across,
            down: rows * down,
            cells: vec![0; columns * rows],
        }
    }

    fn draw(&mut self, line: &Series, at: usize, count: usize) {
        let right = (self.across - 1) as f64;
        let bottom = (self.down - 1) as f64;
        let steps = count.saturating_sub(1).max(1) as f64;
        let spot = |(x, y): (usize, &f64)| {
            let y = if y.is_finite() {
                y.clamp(0.0, 1.0)
            } else {
                0.0
            };
            (x as f64 / steps * right, (1.0 - y) * bottom)
        };
        let spots: Vec<(f64, f64)> = line.values.iter().enumerate().map(spot).collect();
        let mut drawn = 0_usize;
        let mut dot = |canvas: &mut Canvas, x: f64, y: f64| {
            if !line.dotted || drawn.is_multiple_of(3) || canvas.glyphs == Glyphs::Ascii {
                canvas.set(x.round() as usize, y.round() as usize, at);
            }
            drawn += 1;
        };
        if let [(x, y)] = spots.as_slice() {
            dot(self, *x, *y);
        }
        for (nth, pair) in spots.windows(2).enumerate() {
            let [(x0, y0), (x1, y1)] = pair else { continue };
            let reach = (x1 - x0).abs().max((y1 - y0).abs()).ceil().max(1.0);
            // The end of the previous segment is the start of this one, and already drawn.
            for step in usize::from(nth > 0)..=reach as usize {
                let part = step as f64 / reach;
                dot(self, x0 + (x1 - x0) * part, y0 + (y1 - y0) * part);
            }
        }
    }

    fn set(&mut self, x: usize, y: usize, series: usize) {
        let (per_x, per_y) = match self.glyphs {
            Glyphs::Braille => (2, 4),
            Glyphs::Ascii => (1, 1),
        };
        let index = (y / per_y) * self.columns + x / per_x;
        let Some(cell) = self.cells.get_mut(index) else {
            return;
        };
        match self.glyphs {
            Glyphs::Braille => {
                // Dots 1-3 and 7 are the left column from the top, 4-6 and 8 the right one.
                let bit = match (x % 2, y % 4) {
                    (0, 3) => 6,
                    (_, 3) => 7,
                    (0, row) => row,
                    (_, row) => row + 3,
                };
                *cell |= 1 << bit;
            }
            Glyphs::Ascii => *cell = u32::from(ascii_mark(series)),
        }
    }

    fn rows(&self) -> Vec<String> {
        self.cells
            .chunks(self.columns)
            .map(|row| row.iter().map(|cell| self.glyph(*cell)).collect())
            .collect()
    }

    fn glyph(&self, cell: u32) -> char {
        match (self.glyphs, cell) {
            (_, 0) => ' ',
            (Glyphs::Braille, dots) => {
                char::from_u32(0x2800 + dots).expect("a cell has eight dots")
            }
            (Glyphs::Ascii, mark) => char::from_u32(mark).expect("an ASCII cell holds its mark"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Vec<Series> {
        vec![
            Series {
                name: "trained".into(),
                values: vec![0.0, 0.25, 0.5, 1.0, 1.0],
                dotted: false,
            },
            Series {
                name: "control".into(),
                values: vec![0.25, 0.25, 0.25, 0.25, 0.25],
                dotted: true,
            },
        ]
    }

    #[test]
    fn ascii_golden() {
        let options = TerminalOptions {
            width: 30,
            height: 5,
            glyphs: Glyphs::Ascii,
        };
        let expected = "\
1.0 +                 ********
    |              ***
0.5 +          ****
    |oooo******ooooooooooooooo
0.0 +****
    +-------------------------
     1                       5
     * trained   o control
";
        assert_eq!(terminal(&two(), options), expected);
    }

    #[test]
    fn braille_golden() {
        let options = TerminalOptions {
            width: 30,
            height: 5,
            glyphs: Glyphs::Braille,
        };
        let output = terminal(&two(), options);
        assert_eq!(
            output,
            include_str!("../../goldens/braille.txt"),
            "\n{output}"
        );
    }

    #[test]
    fn lines_fit_the_width() {
        for glyphs in [Glyphs::Braille, Glyphs::Ascii] {
            for width in [1, 24, 40, 80, 200] {
                let options = TerminalOptions {
                    width,
                    height: 7,
                    glyphs,
                };
                for series in [two(), vec![]] {
                    for line in terminal(&series, options).lines() {
                        assert!(line.chars().count() <= width.max(24), "{width}: {line:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn invalid_values_stay_inside_the_plot() {
        let odd = Series {
            name: "odd".into(),
            values: vec![f64::NAN, 7.0, -3.0, f64::INFINITY],
            dotted: false,
        };
        let text = terminal(&[odd], TerminalOptions::default());
        assert_eq!(text.lines().count(), 12 + 3);
    }
}
