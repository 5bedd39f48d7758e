//! The page that lists the episodes of a root.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use clawhost_evaluation::escape;

use super::super::entry::{Entry, State, bounded};
use super::super::files::{PAGE, encode};
use super::REFRESH_SECONDS;
use super::html::{document, duration, time};
use super::plot::{self, mean};

/// Episodes that are listed.
const MAX_ROWS: usize = 500;
/// Tasks that are listed.
const MAX_TASKS: usize = 200;
/// Characters of a reason in the list.
const MAX_REASON: usize = 200;

/// Renders the page. `episodes`: directories below the root with what is known of them, in any order. `live`: something writes
/// to the root. `now_ms`: unix milliseconds.
pub(super) fn render(
    root: &Path,
    mut episodes: Vec<(&Path, &Entry)>,
    live: bool,
    now_ms: i64,
) -> String {
    // Running ones first, then the newest.
    episodes.sort_by_key(|(dir, entry)| {
        let ended = !entry.state.is_running();
        (ended, std::cmp::Reverse(entry.started_ms), *dir)
    });
    let running = episodes.partition_point(|(_, entry)| entry.state.is_running());
    let mut body = format!(
        "<h1>Episodes</h1>\n<p>{running} running, {} ended, in <code>{}</code>. Written at <time>{}</time>{}.</p>\n",
        episodes.len() - running,
        escape(&root.to_string_lossy()),
        time(now_ms),
        match live {
            true => "; the page loads itself again",
            false => "",
        },
    );
    body += &rewards(&episodes);
    body += &tasks(&episodes);
    body += &rows(root, &episodes, now_ms);
    let refresh = (live || running > 0).then_some(REFRESH_SECONDS);
    document("Episodes", refresh, &body)
}

fn rewards(episodes: &[(&Path, &Entry)]) -> String {
    let mut rewards: Vec<(i64, f64)> = episodes
        .iter()
        .filter_map(|(_, entry)| match &entry.state {
            State::Finished(verdict) => Some((entry.started_ms, verdict.reward)),
            _ => None,
        })
        .collect();
    rewards.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let rewards: Vec<f64> = rewards.into_iter().map(|(_, reward)| reward).collect();
    match plot::rewards(&rewards) {
        plot if plot.is_empty() => plot,
        plot => format!("<h2>Reward over time</h2>\n{plot}"),
    }
}

/// What is counted of a task.
#[derive(Default)]
struct TaskFigures {
    rewards: Vec<f64>,
    solved: usize,
    /// Episodes that ended without a verdict, for whatever reason.
    without: usize,
}

fn tasks(episodes: &[(&Path, &Entry)]) -> String {
    let mut tasks: BTreeMap<&str, TaskFigures> = BTreeMap::new();
    for (_, entry) in episodes {
        let figures = tasks.entry(&entry.task).or_default();
        match &entry.state {
            State::Running { .. } => {}
            State::Finished(verdict) => {
                figures.rewards.push(verdict.reward);
                figures.solved += usize::from(verdict.solved);
            }
            State::NoVerdict { .. } | State::Interrupted | State::Unreadable(_) => {
                figures.without += 1;
            }
        }
    }
    if tasks.is_empty() {
        return String::new();
    }
    let caption = match tasks.len() {
        all if all > MAX_TASKS => format!("The first {MAX_TASKS} of {all} tasks."),
        _ => "Means are over episodes with a verdict.".to_owned(),
    };
    let mut out = format!(
        "<h2>Tasks</h2>\n<div class=\"scroll\"><table><caption>{caption}</caption>\n<thead><tr><th scope=\"col\">Task</th>\
        <th scope=\"col\" class=\"number\">Verdicts</th><th scope=\"col\" class=\"number\">Pass rate</th>\
        <th scope=\"col\" class=\"number\">Mean reward</th><th scope=\"col\" class=\"number\">Without verdict</th></tr></thead>\n<tbody>\n"
    );
    for (task, figures) in tasks.iter().take(MAX_TASKS) {
        let count = figures.rewards.len();
        let (pass, reward) = match count {
            0 => ("–".to_owned(), "–".to_owned()),
            _ => (
                format!("{:.2}", figures.solved as f64 / count as f64),
                format!("{:.3}", mean(&figures.rewards)),
            ),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\">{}</th><td class=\"number\">{count}</td><td class=\"number\">{pass}</td>\
            <td class=\"number\">{reward}</td><td class=\"number\">{}</td></tr>",
            escape(task),
            figures.without,
        );
    }
    out + "</tbody></table></div>\n"
}

fn rows(root: &Path, episodes: &[(&Path, &Entry)], now_ms: i64) -> String {
    let caption = match episodes.len() {
        0 => return "<p>No episode has begun.</p>\n".to_owned(),
        all if all > MAX_ROWS => format!("{MAX_ROWS} of {all}: running ones, then the newest."),
        _ => "Running ones, then the newest.".to_owned(),
    };
    let mut out = format!(
        "<h2>Episodes</h2>\n<div class=\"scroll\"><table><caption>{caption}</caption>\n<thead><tr><th scope=\"col\">Episode</th>\
        <th scope=\"col\">Task</th><th scope=\"col\">State</th><th scope=\"col\" class=\"number\">Reward</th>\
        <th scope=\"col\" class=\"number\">Steps</th><th scope=\"col\" class=\"number\">Duration</th><th scope=\"col\">Started</th></tr></thead>\n<tbody>\n"
    );
    for (dir, entry) in episodes.iter().take(MAX_ROWS) {
        let page = dir.strip_prefix(root).unwrap_or(dir).join(PAGE);
        let Columns {
            reward,
            steps,
            duration,
        } = Columns::of(entry, now_ms);
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\"><a href=\"{}\">{}</a></th><td>{}</td><td class=\"state\">{}</td><td class=\"number\">{reward}</td>\
            <td class=\"number\">{steps}</td><td class=\"number\">{duration}</td><td>{}</td></tr>",
            encode(&page),
            escape(&entry.id),
            escape(&entry.task),
            state(&entry.state, MAX_REASON),
            time(entry.started_ms),
        );
    }
    out + "</tbody></table></div>\n"
}

/// The numbers of an episode as texts.
pub(super) struct Columns {
    /// Reward of the whole episode.
    pub(super) reward: String,
    /// Replies.
    pub(super) steps: String,
    /// Wall time, until now if it is running.
    pub(super) duration: String,
}

impl Columns {
    /// The numbers of an episode; a dash for one that is not known.
    pub(super) fn of(entry: &Entry, now_ms: i64) -> Self {
        let (reward, steps, seconds) = match &entry.state {
            State::Running { steps } => {
                let running = now_ms.saturating_sub(entry.started_ms).max(0);
                (None, *steps, Some(running as f64 / 1000.0))
            }
            State::Finished(verdict) => (
                Some(format!("{:.3}", verdict.reward)),
                Some(verdict.steps),
                verdict.seconds,
            ),
            State::NoVerdict { seconds, .. } => (None, None, *seconds),
            State::Interrupted | State::Unreadable(_) => (None, None, None),
        };
        let dash = || "–".to_owned();
        Self {
            reward: reward.unwrap_or_else(dash),
            steps: steps.map_or_else(dash, |steps| steps.to_string()),
            duration: seconds.map_or_else(dash, duration),
        }
    }
}

/// What became of an episode, as HTML, with at most `most` characters of a reason.
pub(super) fn state(state: &State, most: usize) -> String {
    let reason = |reason: &str| escape(&bounded(reason, most));
    match state {
        State::Running { .. } => "<span class=\"busy\">running</span>".to_owned(),
        State::Finished(verdict) if verdict.solved => {
            "<span class=\"good\">solved</span>".to_owned()
        }
        State::Finished(_) => "<span class=\"bad\">not solved</span>".to_owned(),
        State::NoVerdict { reason: why, .. } => format!("no verdict: {}", reason(why)),
        State::Interrupted => "interrupted: its process ended".to_owned(),
        State::Unreadable(why) => format!("no verdict: {}", reason(why)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::entry::Verdict;
    use super::*;

    const HOSTILE: &str = "<script>alert(1)</script>";

    fn entry(id: &str, started_ms: i64, state: State) -> Entry {
        Entry {
            id: id.to_owned(),
            task: format!("task-{}", id.chars().next().unwrap()),
            started_ms,
            state,
        }
    }

    fn verdict(reward: f64) -> State {
        State::Finished(Verdict {
            reward,
            solved: reward > 0.0,
            steps: 2,
            seconds: Some(1.0),
            metrics: Vec::new(),
        })
    }

    /// The page of episodes whose directories are named as they are.
    fn page(entries: &[Entry], live: bool) -> String {
        let root = Path::new("/root");
        let dirs: Vec<_> = entries.iter().map(|entry| root.join(&entry.id)).collect();
        let episodes = dirs.iter().map(|dir| dir.as_path()).zip(entries).collect();
        render(root, episodes, live, 10_000)
    }

    #[test]
    fn episodes_are_listed_by_what_became_of_them() {
        let failed = State::NoVerdict {
            reason: format!("the wall {HOSTILE} {}", "x".repeat(1000)),
            seconds: None,
        };
        let entries = [
            entry("a1", 1000, verdict(1.0)),
            entry("a2", 3000, verdict(-0.5)),
            entry("b1", 4000, failed),
            entry("b2", 2000, State::Running { steps: Some(7) }),
            entry("c1", 500, State::Interrupted),
            entry(HOSTILE, 100, State::Unreadable(HOSTILE.to_owned())),
        ];
        let page = page(&entries, false);
        let order: Vec<usize> = ["b2", "b1", "a2", "a1", "c1"]
            .iter()
            .map(|id| page.find(&format!(">{id}</a>")).unwrap())
            .collect();
        assert!(order.is_sorted(), "{order:?}");
        assert!(page.contains("1 running, 5 ended"));
        assert!(page.contains(">7</td><td class=\"number\">8.0 s</td>"));
        // Two verdicts of a task, and none of another one of which one episode is running.
        assert!(page.contains("task-a</th><td class=\"number\">2</td><td class=\"number\">0.50</td><td class=\"number\">0.250</td><td class=\"number\">0</td>"));
        assert!(page.contains("task-b</th><td class=\"number\">0</td><td class=\"number\">–</td><td class=\"number\">–</td><td class=\"number\">1</td>"));
        assert!(page.contains("href=\"a1/episode.html\"") && page.contains("<svg"));
        assert!(!page.contains("<script") && page.contains("&lt;script&gt;alert"));
        assert!(!page.contains(&"x".repeat(MAX_REASON + 1)));
        // Something is running.
        assert!(page.contains(super::super::html::REFRESH));
    }

    #[test]
    fn the_page_follows_only_what_may_change() {
        let done = [entry("a", 1, verdict(1.0))];
        assert!(!page(&done, false).contains("refresh"));
        assert!(page(&done, true).contains("refresh"));
        assert!(page(&[], true).contains("No episode has begun"));
    }

    #[test]
    fn the_list_is_bounded() {
        let many: Vec<Entry> = (0..3000)
            .map(|at| entry(&format!("{at:04}"), at, verdict(1.0)))
            .map(|entry| Entry {
                task: entry.id.clone(),
                ..entry
            })
            .collect();
        let page = page(&many, false);
        assert_eq!(page.matches("<a href").count(), MAX_ROWS);
        assert!(page.contains("500 of 3000") && page.contains("The first 200 of 3000 tasks"));
        assert!(page.contains(">2999</a>") && !page.contains(">2499</a>"));
        assert!(page.len() < 300_000, "{}", page.len());
    }
}
