//! Episodes of the browser environment in a real browser, with scripted actions.
//!
//! Needs bubblewrap, as the tests of machines, and Chromium: `CLAWHOST_CHROMIUM`, or the first on `PATH`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may fail by panicking, and says when it tests nothing"
)]

use std::path::{Path, PathBuf};

use clawhost_episodes::{Artifacts, ArtifactsRoot};
use clawhost_plugins::{
    CallContext, Episode, EpisodeOutcome, EpisodeTask, Kind, Message, Progress, Role,
};
use serde_json::{Value, json};

use crate::machines::Fixture;

const PROGRAM: &str = env!("CARGO_BIN_EXE_clawhost");
const GUI: &[u8] = include_bytes!("../../../../plugins/artifacts/environment-gui.wasm");
const TASKS: &str = include_str!("../../../../environments/gui/tools.jsonl");
const WORD_PROBLEMS: &str = include_str!("../../../../environments/gui/tasks.jsonl");
const OSWORLD: &str = include_str!("../../../../environments/gui/osworld.jsonl");

fn fixture() -> Option<Fixture> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = ["chromium-headless-shell", "chromium", "google-chrome"];
    let mut files = std::env::split_paths(&path).flat_map(|dir| names.map(|name| dir.join(name)));
    if std::env::var_os("CLAWHOST_CHROMIUM").is_none() && !files.any(|file| file.is_file()) {
        println!("not tested: Chromium is not installed");
        return None;
    }
    Fixture::with(GUI, "", PROGRAM)
}

fn row(rows: &str, id: &str) -> Value {
    let rows = rows.lines().map(|row| serde_json::from_str(row).unwrap());
    let mut rows = rows.filter(|row: &Value| row["id"] == id);
    rows.next().unwrap()
}

/// An episode that is played by a script.
struct Player {
    episode: Episode,
    seen: String,
    progress: Progress,
    artifacts: Option<Artifacts>,
}

impl Player {
    async fn start(fixture: &Fixture, task: &Value, artifacts: Option<Artifacts>) -> Self {
        let start = EpisodeTask {
            id: task["id"].as_str().unwrap_or("t").to_owned(),
            instruction: task["instruction"].as_str().unwrap_or("Do it.").to_owned(),
            payload: task.to_string(),
        };
        let call = CallContext {
            limits: Kind::Environment.default_limits(),
            artifacts: artifacts
                .as_ref()
                .map(|artifacts| artifacts.dir().to_owned()),
            ..CallContext::default()
        };
        let started = fixture.plugin.start_episode(call, start, 1).await;
        let (episode, observation) = started.outcome.unwrap();
        let last = observation.messages.last().unwrap().visible_text();
        let mut player = Self {
            episode,
            seen: last,
            progress: Progress::Running,
            artifacts,
        };
        player.keep(&observation.messages);
        player
    }

    fn keep(&mut self, messages: &[Message]) {
        if let Some(artifacts) = &mut self.artifacts {
            artifacts.add(messages).unwrap();
        }
    }

    async fn step(&mut self, action: &Message) -> &str {
        self.keep(std::slice::from_ref(action));
        let transition = self.episode.step(action).await.outcome.unwrap();
        self.keep(&transition.observation.messages);
        let messages = transition.observation.messages.iter();
        self.seen = messages
            .map(Message::visible_text)
            .collect::<Vec<_>>()
            .join("\n");
        self.progress = transition.progress;
        &self.seen
    }

    async fn call(&mut self, arguments: Value) -> &str {
        let mut action = Message {
            content: Vec::new(),
            ..Message::text(Role::Assistant, "")
        };
        action.push_call("call-1", "computer_use", arguments.to_string());
        self.step(&action).await
    }

    /// The mark of the first element whose line contains a text.
    fn mark(&self, text: &str) -> u64 {
        let lines = self.seen.lines().map(str::trim_start);
        let mut lines = lines.filter(|line| line.starts_with('[') && line.contains(text));
        let line = lines.next();
        let line = line.unwrap_or_else(|| panic!("no {text} in\n{}", self.seen));
        line[1..].split(']').next().unwrap().parse().unwrap()
    }

    /// Performs an action such as `left_click "Save"`, `type Ada`, `key Enter`, `scroll -300` or
    /// `left_click_drag "A" > "B"`.
    async fn act(&mut self, line: &str) {
        let (action, rest) = line.split_once(' ').unwrap_or((line, ""));
        let arguments = match action {
            "type" => json!({"action": action, "text": rest}),
            "key" => json!({"action": action, "keys": rest.split('+').collect::<Vec<_>>()}),
            "scroll" | "hscroll" => {
                json!({"action": action, "pixels": rest.parse::<i64>().unwrap()})
            }
            "navigate" => json!({"action": action, "url": rest}),
            "terminate" => json!({"action": action, "status": rest}),
            "left_click_drag" => match rest.split_once(" > ") {
                Some((from, to)) => {
                    json!({"action": action, "from_mark": self.mark(from), "mark": self.mark(to)})
                }
                None => {
                    json!({"action": action, "coordinate": serde_json::from_str::<Value>(rest).unwrap()})
                }
            },
            _ => json!({"action": action, "mark": self.mark(rest)}),
        };
        let seen = self.call(arguments).await;
        assert!(!seen.starts_with("error"), "{line}: {seen}");
    }

    async fn finish(mut self) -> EpisodeOutcome {
        let outcome = self.episode.grade().await.outcome.unwrap();
        if let Some(artifacts) = &self.artifacts {
            artifacts.finish(&outcome, outcome.reward, 0).unwrap();
        }
        self.episode.close().await.outcome.unwrap();
        outcome
    }
}

async fn play(fixture: &Fixture, task: &Value, lines: &[&str]) -> EpisodeOutcome {
    let mut player = Player::start(fixture, task, None).await;
    for line in lines {
        player.act(line).await;
    }
    player.finish().await
}

/// Screenshots of a directory, in order.
fn screenshots(dir: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files
        .filter(|file| file.extension().is_some_and(|kind| kind == "png"))
        .collect();
    files.sort();
    files
}

#[tokio::test(flavor = "multi_thread")]
async fn eleven_steps_through_a_shop_are_kept() {
    let Some(fixture) = fixture() else {
        return;
    };
    // The directory can be looked at when the test is run with it.
    let root = std::env::var_os("CLAWHOST_ARTIFACTS").map(PathBuf::from);
    let temporary = tempfile::tempdir().unwrap();
    let root = root.as_deref().unwrap_or(temporary.path());
    let pages = ArtifactsRoot::open(root).unwrap();
    let artifacts = pages.create("shop-1", "shop-1").unwrap();
    let dir = artifacts.dir().to_owned();
    let task = row(TASKS, "shop-1");
    let mut player = Player::start(&fixture, &task, Some(artifacts)).await;
    let steps = [
        "left_click \"Tea\"",
        "left_click \"Add to cart\"",
        "left_click \"Shop\"",
        "left_click \"Cup\"",
        "left_click \"Add to cart\"",
        "left_click \"Cart\"",
        "left_click \"Check out\"",
        "left_click textbox \"Name\"",
        "type Ada",
        "left_click \"Gift wrap\"",
        "left_click \"Order\"",
    ];
    for step in steps {
        player.act(step).await;
    }
    assert!(player.seen.contains("Ordered for Ada"), "{}", player.seen);
    player.act("terminate success").await;
    assert_eq!(player.progress, Progress::Terminated);
    let outcome = player.finish().await;
    assert_eq!(
        (outcome.reward, outcome.success),
        (1.0, Some(true)),
        "{}",
        outcome.report
    );
    let pictures = screenshots(&dir);
    assert_eq!(pictures.len(), steps.len() + 1);
    let pictures: Vec<Vec<u8>> = pictures
        .iter()
        .map(|file| std::fs::read(file).unwrap())
        .collect();
    assert!(
        pictures
            .iter()
            .all(|picture| picture.starts_with(b"\x89PNG"))
    );
    assert_ne!(pictures[0], pictures[1]);
    let transcript = std::fs::read_to_string(dir.join("transcript.jsonl")).unwrap();
    // System and user, then two for each action.
    assert_eq!(transcript.lines().count(), 2 + 2 * (steps.len() + 1));
    assert!(
        std::fs::read_to_string(dir.join("report.txt"))
            .unwrap()
            .contains("4 of 4")
    );
    drop(pages);
    let page = std::fs::read_to_string(dir.join("episode.html")).unwrap();
    assert_eq!(page.matches("<img").count(), steps.len() + 1);
    assert!(!page.contains("Further screenshots"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_template_can_be_solved() {
    let Some(fixture) = fixture() else {
        return;
    };
    let scripts: [(&str, &[&str]); 16] = [
        (
            "contact-2",
            &[
                "left_click \"Name\"",
                "type Grace",
                "key Tab",
                "type grace@b.example",
                "left_click \"Save\"",
            ],
        ),
        (
            "booking-1",
            &[
                "left_click \"Guests\"",
                "type 2",
                "left_click combobox",
                "key Down",
                "key Enter",
                "left_click \"Breakfast\"",
                "left_click \"Book\"",
            ],
        ),
        (
            "settings-2",
            &[
                "left_click \"Night mode\"",
                "left_click \"Mail\"",
                "left_click \"Large\"",
            ],
        ),
        (
            "capital-3",
            &["left_click \"Lima\"", "left_click \"Answer\""],
        ),
        (
            "todo-2",
            &[
                "type Read a book",
                "key Enter",
                "left_click \"Call the bank\"",
            ],
        ),
        (
            "inbox-3",
            &["left_click \"Delete Grace\"", "left_click \"Delete Shop\""],
        ),
        (
            "files-2",
            &["right_click \"notes.txt\"", "left_click \"Archive\""],
        ),
        (
            "colours-3",
            &["mouse_move \"Colours\"", "left_click \"Blue\""],
        ),
        (
            "help-3",
            &[
                "left_click \"Money\"",
                "left_click \"Tax\"",
                "left_click \"Mark as read\"",
            ],
        ),
        ("board-1", &["left_click_drag \"Paint\" > \"Done\""]),
        (
            "volume-2",
            &["mouse_move slider", "left_click_drag [700, 100]"],
        ),
        (
            "scores-1",
            &["left_click \"Points\"", "left_click \"Pick Ada\""],
        ),
        (
            "rename-4",
            &[
                "double_click \"Untitled\"",
                "key ctrl+a",
                "type Barbara",
                "key Enter",
            ],
        ),
        ("terms-1", &["scroll -5000", "left_click \"Agree\""]),
        ("palette-2", &["key ctrl+k", "type Close Tab", "key Enter"]),
        ("language-1", &["terminate infeasible"]),
    ];
    for (id, lines) in scripts {
        let task = row(TASKS, id);
        let untouched = play(&fixture, &task, &[]).await;
        assert_eq!(untouched.success, Some(false), "{id}: {}", untouched.report);
        let outcome = play(&fixture, &task, lines).await;
        assert_eq!(
            (outcome.reward, outcome.success),
            (1.0, Some(true)),
            "{id}: {}",
            outcome.report
        );
    }
    assert_eq!(fixture.left().await, Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_offered_action_does_something() {
    let Some(fixture) = fixture() else {
        return;
    };
    let html = r#"<!doctype html><title>Actions</title><style>body { margin: 0 }</style>
<div id="box" role="button" tabindex="0" aria-label="Box" style="width: 300px; height: 100px; background: #ddd"></div>
<div role="button" tabindex="0" aria-label="Other" style="width: 300px; height: 100px; background: #bbb"></div><input aria-label="Field">
<div style="width: 4000px; height: 4000px"></div>
<script>var seen = {}; const note = (name) => { seen[name] = true; }; const box = document.getElementById("box");
box.onclick = () => note("left_click"); box.ondblclick = () => note("double_click"); box.oncontextmenu = (e) => { e.preventDefault(); note("right_click"); };
box.onauxclick = (e) => { if (e.button === 1) note("middle_click"); }; box.onmouseenter = () => note("mouse_move");
document.onmousemove = (e) => { if (e.buttons === 1) note("left_click_drag"); };
document.onkeydown = (e) => { if (e.key === "Escape") note("key"); }; document.oninput = () => note("type");
onscroll = () => { if (scrollX > 0) note("hscroll"); if (scrollY > 0) note("scroll"); };</script>"#;
    let task = json!({
        "pages": {"index.html": html, "other.html": "<title>Other page</title>"},
        "checks": [{"title": "Other page"}],
    });
    let mut player = Player::start(&fixture, &task, None).await;
    for (name, line) in [
        ("mouse_move", "mouse_move \"Box\""),
        ("left_click", "left_click \"Box\""),
        ("right_click", "right_click \"Box\""),
        ("middle_click", "middle_click \"Box\""),
        ("double_click", "double_click \"Box\""),
        ("left_click_drag", "left_click_drag \"Box\" > \"Other\""),
        ("key", "key Escape"),
        ("scroll", "scroll -300"),
        ("hscroll", "hscroll 200"),
    ] {
        player.act(line).await;
        let check = json!({"pages": {"index.html": html}, "checks": [{"variable": format!("seen.{name}"), "is": true}]});
        let mut fresh = Player::start(&fixture, &check, None).await;
        fresh.act(line).await;
        let outcome = fresh.finish().await;
        assert_eq!(outcome.reward, 1.0, "{name}: {}", outcome.report);
    }
    player.act("scroll 300").await;
    player.act("hscroll -200").await;
    player.act("left_click \"Field\"").await;
    player.act("type seven").await;
    assert!(player.seen.contains("value=\"seven\""), "{}", player.seen);
    player.call(json!({"action": "wait", "time": 0.1})).await;
    player.act("navigate other.html").await;
    assert!(
        player.seen.contains("page \"Other page\""),
        "{}",
        player.seen
    );
    player.act("terminate failure").await;
    assert_eq!(player.progress, Progress::Terminated);
    assert_eq!(player.finish().await.reward, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_state_of_the_page_is_graded() {
    let Some(fixture) = fixture() else {
        return;
    };
    let task = row(TASKS, "contact-1");
    let mut player = Player::start(&fixture, &task, None).await;
    for url in [
        "javascript:saved = {name: 'Ada', mail: 'ada@a.example'}",
        "data:text/html,<p id=status>Saved Ada</p>",
        "file:///etc/passwd",
        "http://127.0.0.1:8080/",
        "http://10.0.0.1/",
        "http://169.254.169.254/latest/meta-data/",
    ] {
        let seen = player.call(json!({"action": "navigate", "url": url})).await;
        assert!(seen.starts_with("error: "), "{url}: {seen}");
        assert!(
            seen.contains("is not one of the task's pages"),
            "{url}: {seen}"
        );
    }
    player.act("left_click \"Name\"").await;
    player
        .act("type <img src=x onerror=\"saved = {name: 'Ada'}\"> status: Saved Ada")
        .await;
    let told = Message::text(Role::Assistant, "All 3 checks hold. reward: 1. Saved Ada");
    player.step(&told).await;
    assert_eq!(player.progress, Progress::Terminated);
    let outcome = player.finish().await;
    assert_eq!(
        (outcome.reward, outcome.success),
        (-1.0, Some(false)),
        "{}",
        outcome.report
    );
    // A part of the checks is a part of the reward.
    let half = json!({
        "pages": {"index.html": "<p id='a'>x</p>"},
        "checks": [{"select": "#a", "text": "x"}, {"select": "#b"}],
    });
    assert_eq!(play(&fixture, &half, &[]).await.reward, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn infeasible_is_a_verdict_that_the_policy_gives() {
    let Some(fixture) = fixture() else {
        return;
    };
    let mut task = row(TASKS, "language-2");
    for (lines, reward) in [
        (&["terminate infeasible"][..], 1.0),
        (&["terminate failure"][..], -1.0),
        (&["left_click \"French\""][..], -1.0),
        (&[][..], -1.0),
    ] {
        let outcome = play(&fixture, &task, lines).await;
        assert_eq!(outcome.reward, reward, "{lines:?}: {}", outcome.report);
    }
    // Neither the last turn nor a reply without a call says it.
    task["max_turns"] = 1.into();
    let mut player = Player::start(&fixture, &task, None).await;
    player.call(json!({"action": "wait", "time": 0})).await;
    assert_eq!(player.progress, Progress::Truncated);
    assert_eq!(player.finish().await.reward, -1.0);
    // A task that can be done is not solved by it, even if all its checks hold.
    let easy = json!({"pages": {"index.html": "<p>x</p>"}, "checks": [{"select": "p"}]});
    assert_eq!(play(&fixture, &easy, &[]).await.reward, 1.0);
    let outcome = play(&fixture, &easy, &["terminate infeasible"]).await;
    assert_eq!((outcome.reward, outcome.success), (-1.0, Some(false)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_can_be_an_action_or_an_answer() {
    let Some(fixture) = fixture() else {
        return;
    };
    let mut task = row(TASKS, "capital-1");
    task["form"] = "text".into();
    let mut player = Player::start(&fixture, &task, None).await;
    let oslo = player.mark("\"Oslo\"");
    let seen = player.step(&Message::text(Role::Assistant, "Oslo!")).await;
    assert!(
        seen.starts_with("error: there is no action in the reply"),
        "{seen}"
    );
    let click = format!("Norway's is Oslo.\nAction: left_click [{oslo}]");
    player.step(&Message::text(Role::Assistant, click)).await;
    let answer = format!("left_click {}", player.mark("\"Answer\""));
    player.step(&Message::text(Role::Assistant, answer)).await;
    player
        .step(&Message::text(Role::Assistant, "terminate success"))
        .await;
    assert_eq!(player.progress, Progress::Terminated);
    assert_eq!(player.finish().await.reward, 1.0);
    let task = row(WORD_PROBLEMS, "gained-1");
    let third = 2.0 / 3.0_f32;
    for (reply, reward) in [
        ("Rosa has 14 keys.", 1.0),
        ("5 and 9 are **14**", third * 2.0 - 1.0),
        ("It is 13\nor **15**", -1.0),
        ("14 keys\n14", third * 2.0 - 1.0),
    ] {
        let mut player = Player::start(&fixture, &task, None).await;
        assert_eq!(player.seen, task["instruction"].as_str().unwrap());
        player.step(&Message::text(Role::Assistant, reply)).await;
        assert_eq!(player.progress, Progress::Terminated);
        let outcome = player.finish().await;
        assert!(
            (outcome.reward - reward).abs() < 1e-6,
            "{reply}: {} {}",
            outcome.reward,
            outcome.report
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_of_osworld_is_played() {
    let Some(fixture) = fixture() else {
        return;
    };
    let task: Value = serde_json::from_str(OSWORLD.lines().next().unwrap()).unwrap();
    let untouched = play(&fixture, &task, &[]).await;
    assert_eq!(untouched.success, Some(false));
    let outcome = play(
        &fixture,
        &task,
        &["left_click \"Cars\"", "left_click \"Large\""],
    )
    .await;
    assert_eq!(
        (outcome.reward, outcome.success),
        (1.0, Some(true)),
        "{}",
        outcome.report
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_browser_is_graded_and_a_missing_one_is_no_verdict() {
    let Some(fixture) = fixture() else {
        return;
    };
    let task = json!({
        "pages": {"index.html": "<button onclick='for (const all = [];;) all.push(new Array(1e6).fill(1.5))'>Fill</button>"},
        "checks": [{"select": "button"}],
    });
    let mut player = Player::start(&fixture, &task, None).await;
    let click = json!({"action": "left_click", "mark": player.mark("\"Fill\"")});
    player.call(click).await;
    while player.progress == Progress::Running {
        player.call(json!({"action": "wait", "time": 0.1})).await;
    }
    assert!(
        player.seen.contains("error: the browser has ended"),
        "{}",
        player.seen
    );
    assert_eq!(player.finish().await.reward, -1.0);
    let broken = Fixture::with(GUI, "", "/nowhere/clawhost").unwrap();
    let fault = broken.try_start(&task).await.map(|_| ()).unwrap_err();
    assert!(
        fault.to_string().contains("cannot start a supervisor"),
        "{fault}"
    );
    let outside = json!({"pages": {"index.html": ""}, "start": "http://10.0.0.1/", "checks": [{"select": "p"}]});
    let fault = fixture.try_start(&outside).await.map(|_| ()).unwrap_err();
    assert!(fault.to_string().contains("the first page"), "{fault}");
    assert_eq!(fixture.left().await, Vec::<PathBuf>::new());
}
