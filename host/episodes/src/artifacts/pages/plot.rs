//! The rewards of episodes over time, as inline SVG.
//!
//! The plots of `clawhost-evaluation` are of scores from 0 to 1; rewards have any range and may be negative.

use std::fmt::Write as _;

/// Dots of a plot. More episodes are drawn as the means of consecutive ones.
const MAX_DOTS: usize = 300;
/// Dots that a point of the line is the mean of.
const WINDOW: usize = 20;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 10.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 28.0;

/// Draws rewards, oldest first; empty if there are fewer than two.
pub(super) fn rewards(rewards: &[f64]) -> String {
    if rewards.len() < 2 {
        return String::new();
    }
    let per_dot = rewards.len().div_ceil(MAX_DOTS);
    let dots: Vec<f64> = rewards.chunks(per_dot).map(mean).collect();
    let line: Vec<f64> = (0..dots.len())
        .map(|at| mean(&dots[at.saturating_sub(WINDOW - 1)..=at]))
        .collect();
    let low = dots.iter().copied().fold(0.0_f64, f64::min);
    let high = dots.iter().copied().fold(0.0_f64, f64::max);
    let range = if high > low { high - low } else { 1.0 };
    let x = |at: usize| LEFT + at as f64 / (dots.len().max(2) - 1) as f64 * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| TOP + (1.0 - (value - low) / range) * (HEIGHT - TOP - BOTTOM);
    let mut out = format!(
        "<svg role=\"img\" viewBox=\"0 0 {WIDTH} {HEIGHT}\"><title>Rewards of {} episodes, oldest first, from {low:.2} to {high:.2}; the mean of the last is {:.2}</title>",
        rewards.len(),
        line.last().copied().unwrap_or_default(),
    );
    let right = WIDTH - RIGHT;
    // Writing to a string cannot fail.
    for value in [low, (low + high) / 2.0, high] {
        let y = y(value);
        let _ = write!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"currentColor\" stroke-opacity=\"0.2\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"currentColor\">{value:.2}</text>",
            LEFT - 6.0,
            y + 4.0,
        );
    }
    for (at, value) in dots.iter().enumerate() {
        let _ = write!(
            out,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.5\" fill=\"currentColor\" fill-opacity=\"0.35\"/>",
            x(at),
            y(*value)
        );
    }
    let points = line.iter().enumerate();
    let points: Vec<String> = points
        .map(|(at, value)| format!("{:.1},{:.1}", x(at), y(*value)))
        .collect();
    let each = match per_dot {
        1 => "each dot is an episode".to_owned(),
        several => format!("each dot is the mean of {several} episodes"),
    };
    let _ = writeln!(
        out,
        "<polyline class=\"busy\" points=\"{}\" fill=\"none\" stroke=\"currentColor\" stroke-width=\"2\"/><text x=\"{LEFT}\" y=\"{:.1}\" fill=\"currentColor\">oldest first; {each}; the line is the mean of {WINDOW} dots</text></svg>",
        points.join(" "),
        HEIGHT - 8.0,
    );
    out
}

/// The mean of numbers; 0 of none.
pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Heights of the dots.
    fn heights(plot: &str) -> Vec<f64> {
        let dots = plot.split("cy=\"").skip(1);
        dots.map(|dot| dot.split('"').next().unwrap().parse().unwrap())
            .collect()
    }

    #[test]
    fn negative_rewards_are_below_positive_ones() {
        let heights = heights(&rewards(&[-1.0, 0.0, 1.0]));
        assert_eq!(
            heights,
            [HEIGHT - BOTTOM, (TOP + HEIGHT - BOTTOM) / 2.0, TOP]
        );
        assert_eq!(rewards(&[1.0]), "");
    }

    #[test]
    fn many_episodes_are_few_dots() {
        let many: Vec<f64> = (0..10_000).map(f64::from).collect();
        let plot = rewards(&many);
        assert!(heights(&plot).len() <= MAX_DOTS);
        assert!(plot.len() < 60_000 && plot.contains("the mean of 34 episodes"));
        assert!(!rewards(&[0.0; 5]).contains("NaN"));
    }
}
