//! An SVG chart of rewards in the order of their verdicts: a dot per reward, and their running mean.

use std::fmt::{self, Write as _};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 180.0;
const MARGIN: f64 = 28.0;
/// Rewards in one point of the running mean.
const WINDOW: usize = 16;

/// Draws rewards from -1 to 1; values outside are drawn at the border.
pub(super) fn rewards(page: &mut String, rewards: &[f32]) -> fmt::Result {
    if rewards.is_empty() {
        page.push_str("<p>No verdicts yet.</p>");
        return Ok(());
    }
    write!(
        page,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"rewards of the last {} judged replies\">",
        rewards.len()
    )?;
    for (reward, label) in [(1.0, "+1"), (0.0, "0"), (-1.0, "−1")] {
        let y = height(reward);
        write!(
            page,
            "<line class=\"axis\" x1=\"{MARGIN}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text x=\"4\" y=\"{:.1}\">{label}</text>",
            y + 4.0
        )?;
    }
    let step = (WIDTH - 2.0 * MARGIN) / (rewards.len().max(2) - 1) as f64;
    let across = |index: usize| MARGIN + step * index as f64;
    for (index, reward) in rewards.iter().enumerate() {
        write!(
            page,
            "<circle class=\"dot\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.5\"/>",
            across(index),
            height(f64::from(*reward))
        )?;
    }
    page.push_str("<polyline class=\"mean\" points=\"");
    for (index, mean) in running_mean(rewards).into_iter().enumerate() {
        write!(page, "{:.1},{:.1} ", across(index), height(mean))?;
    }
    page.push_str("\"/></svg>");
    Ok(())
}

fn height(reward: f64) -> f64 {
    let reward = if reward.is_finite() {
        reward.clamp(-1.0, 1.0)
    } else {
        0.0
    };
    let inner = HEIGHT - 2.0 * MARGIN;
    MARGIN + inner * (1.0 - reward) / 2.0
}

/// The mean of each reward and up to `WINDOW - 1` before it.
fn running_mean(rewards: &[f32]) -> Vec<f64> {
    (1..=rewards.len())
        .filter_map(|end| rewards.get(end.saturating_sub(WINDOW)..end))
        .map(|window| {
            window.iter().map(|reward| f64::from(*reward)).sum::<f64>() / window.len() as f64
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn every_reward_is_drawn() {
        for count in [1, 2, 300] {
            let mut page = String::new();
            super::rewards(&mut page, &vec![0.5; count]).unwrap();
            assert_eq!(page.matches("<circle").count(), count);
            assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
        }
    }

    #[test]
    fn out_of_range_rewards_are_clamped() {
        assert_eq!(height(7.0), height(1.0));
        assert_eq!(height(f64::NAN), height(0.0));
    }
}
