//! Displays with a real browser. The program is `CLAWHOST_CHROMIUM`, or the first on `PATH`; without it, or without machines,
//! every test returns at once and says so.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use clawhost_config::{SandboxConfig, SandboxProfile};
use clawhost_sandbox::{Display, Input, MouseButton, Page, SandboxError, Sandboxes};
use serde_json::{Value, json};

use crate::{Fixture, config, owner, parent, supervisor};

/// Names the directory of leases for the process that is killed.
const OWNER_DIR: &str = "CLAWHOST_TEST_DISPLAY_DIR";

fn chromium() -> Option<PathBuf> {
    if let Some(program) = std::env::var_os("CLAWHOST_CHROMIUM") {
        return Some(program.into());
    }
    let path = std::env::var_os("PATH")?;
    let names = ["chromium-headless-shell", "chromium", "google-chrome"];
    let mut files = std::env::split_paths(&path).flat_map(|dir| names.map(|name| dir.join(name)));
    let found = files.find(|program| program.is_file());
    if found.is_none() {
        println!("not tested: Chromium is not installed (apt-get install chromium)");
    }
    found
}

fn browser_config(profile: SandboxProfile) -> Option<SandboxConfig> {
    let browser = SandboxConfig::default().profile("browser").unwrap();
    let profile = SandboxProfile {
        memory: browser.memory,
        processes: browser.processes,
        ..profile
    };
    Some(SandboxConfig {
        chromium: Some(chromium()?),
        ..config(profile)?
    })
}

fn fixture(profile: SandboxProfile) -> Option<Fixture> {
    let dir = tempfile::tempdir().unwrap();
    let sandboxes = Sandboxes::new(browser_config(profile)?, supervisor(), dir.path()).unwrap();
    Some(Fixture { sandboxes, dir })
}

fn page(url: &str, html: &str) -> Page {
    Page {
        url: url.to_owned(),
        media_type: "text/html; charset=utf-8".to_owned(),
        data: html.as_bytes().to_vec(),
    }
}

async fn open(fixture: &Fixture, html: &str) -> Display {
    let pages = vec![
        page("index.html", html),
        page("next.html", "<title>Next</title>"),
    ];
    let display = fixture
        .sandboxes
        .open_display(owner(), "small", pages)
        .await;
    let display = display.unwrap();
    display.navigate("index.html").await.unwrap();
    display
}

async fn variable(display: &Display, path: &str) -> Value {
    let found = display.query("variable", path).await.unwrap();
    serde_json::from_str(&found).unwrap()
}

/// Waits until a variable of the page has a value.
async fn wait_for(display: &Display, path: &str, wanted: &Value) {
    while variable(display, path).await != *wanted {
        display.act(Input::Wait(20)).await.unwrap();
    }
}

/// The pixel at the middle of the element whose line contains a text.
async fn find(display: &Display, text: &str) -> (u32, u32) {
    let tree = display.tree().await.unwrap();
    let line = tree.lines().find(|line| line.contains(text));
    let line = line.unwrap_or_else(|| panic!("no {text} in\n{tree}"));
    let (_, place) = line.rsplit_once(" @").unwrap();
    let (x, y) = place.split_once(',').unwrap();
    (x.parse().unwrap(), y.parse().unwrap())
}

const EVENTS: &str = r#"<!doctype html><title>Events</title><style>body { margin: 0 } #box { height: 200px; background: #ddd }</style>
<div id="box" role="button" tabindex="0" aria-label="Box"></div><p><label>Field <input id="field"></label></p>
<div style="height: 3000px; width: 3000px">long</div>
<script>var events = [], moved = null;
for (const kind of ["click", "auxclick", "dblclick", "contextmenu"])
  document.getElementById("box").addEventListener(kind, (event) => { event.preventDefault(); events.push(kind + event.button); });
document.onmousemove = (event) => { moved = [event.clientX, event.clientY]; };
document.onkeydown = (event) => { if (event.ctrlKey && event.key.length === 1) events.push("ctrl+" + event.key); };
window.onscroll = () => { scrolled = [scrollX, scrollY]; }; var scrolled = null;</script>"#;

#[tokio::test]
async fn every_action_reaches_the_page() {
    let Some(fixture) = fixture(SandboxProfile::default()) else {
        return;
    };
    let display = open(&fixture, EVENTS).await;
    let act = async |input| display.act(input).await.unwrap();
    act(Input::Move(40, 50)).await;
    wait_for(&display, "moved", &json!([40, 50])).await;
    act(Input::Click(10, 20, MouseButton::Left)).await;
    act(Input::Click(10, 20, MouseButton::Middle)).await;
    act(Input::Click(10, 20, MouseButton::Right)).await;
    act(Input::DoubleClick(10, 20)).await;
    act(Input::Keys("ctrl+shift+k".to_owned())).await;
    assert_eq!(
        variable(&display, "events").await,
        json!([
            "click0",
            "auxclick1",
            "contextmenu2",
            "auxclick2",
            "click0",
            "click0",
            "dblclick0",
            "ctrl+K"
        ])
    );
    let (x, y) = find(&display, "\"Field\"").await;
    act(Input::Click(x, y, MouseButton::Left)).await;
    act(Input::Text("Aé ?\u{1f600}b".to_owned())).await;
    act(Input::Keys("shift+left".to_owned())).await;
    act(Input::Keys("Z".to_owned())).await;
    let field = display.query("select", "#field").await.unwrap();
    let field: Value = serde_json::from_str(&field).unwrap();
    assert_eq!(
        (&field[0]["value"], &field[0]["focused"]),
        (&json!("Aé ?😀Z"), &json!(true))
    );
    act(Input::Keys("ctrl+a".to_owned())).await;
    act(Input::Keys("Delete".to_owned())).await;
    let field = display.query("select", "#field").await.unwrap();
    assert!(field.contains("\"value\":\"\""), "{field}");
    act(Input::Scroll(0, 500)).await;
    wait_for(&display, "scrolled", &json!([0, 500])).await;
    act(Input::Scroll(100, -500)).await;
    wait_for(&display, "scrolled", &json!([100, 0])).await;
    display.navigate("next.html?a=1").await.unwrap();
    let page = display.query("page", "").await.unwrap();
    let page: Value = serde_json::from_str(&page).unwrap();
    assert_eq!(
        page,
        json!({"title": "Next", "url": "http://task.test/next.html?a=1"})
    );
    for (input, why) in [
        (
            Input::Click(1024, 0, MouseButton::Left),
            "outside of the 1024 by 768",
        ),
        (Input::Keys("ctrl+nothing".to_owned()), "there is no key"),
        (Input::Scroll(0, i32::MAX), "a scroll of"),
        (Input::Wait(u32::MAX), "a wait of"),
    ] {
        let error = display.act(input).await.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[tokio::test]
async fn dragging_moves_data_and_whatever_follows_the_mouse() {
    let Some(fixture) = fixture(SandboxProfile::default()) else {
        return;
    };
    let html = r#"<!doctype html><style>body { margin: 0 } div { position: absolute; width: 100px; height: 100px; background: #bbb }</style>
<div id="card" draggable="true" style="left: 0; top: 0">card</div><div id="place" style="left: 300px; top: 300px"></div>
<div id="knob" style="left: 0; top: 200px">knob</div>
<script>var dropped = null, path = [], down = false; const by = (id) => document.getElementById(id);
by("card").ondragstart = (event) => event.dataTransfer.setData("text/plain", "the card");
by("place").ondragover = (event) => event.preventDefault();
by("place").ondrop = (event) => { event.preventDefault(); dropped = event.dataTransfer.getData("text/plain"); };
by("knob").onmousedown = (event) => { event.preventDefault(); down = true; };
document.onmousemove = (event) => { if (down) path.push([event.clientX, event.clientY]); };
document.onmouseup = () => { down = false; };</script>"#;
    let display = open(&fixture, html).await;
    display
        .act(Input::Drag((50, 50), (350, 350)))
        .await
        .unwrap();
    assert_eq!(variable(&display, "dropped").await, "the card");
    display
        .act(Input::Drag((50, 250), (450, 250)))
        .await
        .unwrap();
    let path = variable(&display, "path").await;
    assert!(path.as_array().unwrap().len() > 2, "{path}");
    assert_eq!(path.as_array().unwrap().last().unwrap(), &json!([450, 250]));
    assert_eq!(variable(&display, "down").await, false);
}

#[tokio::test]
async fn the_page_is_seen_as_a_picture_and_as_a_tree() {
    let Some(fixture) = fixture(SandboxProfile::default()) else {
        return;
    };
    let html = r#"<!doctype html><title>A "page"</title><h1>Shop</h1><button disabled>Pay</button>
<label><input type="checkbox" checked> Gift</label><button onclick="alert('Hi'); said = confirm('Sure?')">Ask</button>
<div style="height: 2000px"></div><a href="next.html">On</a><script>var said = null;</script>"#;
    let display = open(&fixture, html).await;
    let frame = display.observe(true).await.unwrap();
    assert!(frame.screenshot.starts_with(b"\x89PNG\r\n"));
    let size = |at: usize| u32::from_be_bytes(frame.screenshot[at..at + 4].try_into().unwrap());
    assert_eq!((size(16), size(20)), (1024, 768));
    assert_eq!(frame.url, "http://task.test/index.html");
    let tree = frame.tree.unwrap();
    let lines: Vec<&str> = tree.lines().map(str::trim_start).collect();
    assert_eq!(lines[0], r#"page "A \"page\"" http://task.test/index.html"#);
    assert!(
        lines[1].starts_with("[1] heading \"Shop\" level=1 @"),
        "{tree}"
    );
    assert!(
        lines[2].starts_with("[2] button \"Pay\" disabled @"),
        "{tree}"
    );
    assert!(tree.contains("checkbox \"Gift\" checked"), "{tree}");
    assert!(lines.contains(&"link \"On\" below"), "{tree}");
    let (x, y) = find(&display, "\"Ask\"").await;
    display
        .act(Input::Click(x, y, MouseButton::Left))
        .await
        .unwrap();
    wait_for(&display, "said", &json!(false)).await;
    let tree = display.tree().await.unwrap();
    assert!(
        tree.ends_with("dialog \"Hi\"\ndialog \"Sure?\"\n"),
        "{tree}"
    );
}

#[tokio::test]
async fn queries_are_not_answered_by_the_page() {
    let Some(fixture) = fixture(SandboxProfile {
        queries: [(
            "links".to_owned(),
            "(kind) => document.links.length + kind".to_owned(),
        )]
        .into(),
        ..SandboxProfile::default()
    }) else {
        return;
    };
    let html = r#"<!doctype html><p id="a">truth</p><script>
document.querySelectorAll = () => [{localName: "p", innerText: "forged", attributes: [], checkVisibility: () => true}];
Array.from = () => ["forged"]; JSON.stringify = () => "forged"; localStorage.k = "v"; var deep = {list: [1, {x: "y"}]};</script>"#;
    let display = open(&fixture, html).await;
    let found = display.query("select", "#a").await.unwrap();
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(
        (&found[0]["text"], &found[0]["tag"]),
        (&json!("truth"), &json!("p"))
    );
    assert_eq!(variable(&display, "deep.list.1.x").await, "y");
    assert_eq!(variable(&display, "none.such").await, Value::Null);
    assert_eq!(display.query("storage", "k").await.unwrap(), "\"v\"");
    assert_eq!(display.query("links", "!").await.unwrap(), "\"0!\"");
    for (name, argument, why) in [
        ("select", "p[", "the query select failed"),
        ("variable", "alert()", "is not a path"),
        ("eval", "1", "there is no query"),
    ] {
        let error = display.query(name, argument).await.unwrap_err();
        assert!(
            matches!(&error, SandboxError::Denied(reason) if reason.contains(why)),
            "{error}"
        );
    }
}

#[tokio::test]
async fn nothing_outside_of_the_pages_is_reached() {
    let Some(fixture) = fixture(SandboxProfile::default()) else {
        return;
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let html = r#"<!doctype html><a id="file" href="file:///etc/passwd">File</a> <a download="x.txt" href="next.html">Download</a>
<a target="_blank" href="next.html">Window</a><iframe src="file:///etc/passwd"></iframe><iframe src="http://127.0.0.1:PORT/"></iframe>
<script>var results = {}; const here = "127.0.0.1:PORT";
const note = (name, promise) => promise.then(() => { results[name] = "reached"; }, () => { results[name] = "blocked"; });
note("http", fetch("http://" + here)); note("opaque", fetch("http://" + here, {mode: "no-cors"}));
note("private", fetch("http://10.0.0.1/")); note("metadata", fetch("http://169.254.169.254/"));
note("file", fetch("file:///etc/passwd")); note("name", fetch("https://example.com/"));
note("own", fetch("next.html"));
note("socket", new Promise((open, fail) => { const s = new WebSocket("ws://" + here); s.onopen = open; s.onerror = fail; }));
note("image", new Promise((load, fail) => { const i = new Image(); i.onload = load; i.onerror = fail; i.src = "http://" + here + "/i.png"; }));
results.window = window.open("next.html") === null ? "blocked" : "reached";
try { location.href = "file:///etc/hostname"; } catch {}</script>"#
        .replace("PORT", &port.to_string());
    let display = open(&fixture, &html).await;
    for name in [
        "http", "opaque", "private", "metadata", "file", "name", "socket", "image", "window",
    ] {
        wait_for(&display, &format!("results.{name}"), &json!("blocked")).await;
    }
    assert_eq!(variable(&display, "results.own").await, "reached");
    for link in ["\"File\"", "\"Download\"", "\"Window\""] {
        let (x, y) = find(&display, link).await;
        display
            .act(Input::Click(x, y, MouseButton::Left))
            .await
            .unwrap();
        let page = display.query("page", "").await.unwrap();
        assert!(
            page.contains("http://task.test/index.html"),
            "{link}: {page}"
        );
    }
    for url in [
        "file:///etc/passwd".to_owned(),
        format!("http://127.0.0.1:{port}/"),
        format!("http://localhost:{port}/"),
        "http://192.168.1.1/".to_owned(),
        "http://[::1]/".to_owned(),
        "chrome://version".to_owned(),
        "javascript:document.title".to_owned(),
        "https://example.com/".to_owned(),
    ] {
        let error = display.navigate(&url).await.unwrap_err();
        assert!(matches!(error, SandboxError::Denied(_)), "{url}: {error}");
    }
    let reached = listener.accept().map(|_| ());
    assert_eq!(reached.unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[tokio::test]
async fn a_display_that_cannot_be_opened_says_why() {
    let Some(mut config) = browser_config(SandboxProfile::default()) else {
        return;
    };
    let profile = config.profiles.get("small").cloned().unwrap();
    let wide = SandboxProfile {
        network: true,
        ..profile
    };
    config.profiles.insert("wide".to_owned(), wide);
    config.chromium = Some("/usr/bin/no-such-browser".into());
    let dir = tempfile::tempdir().unwrap();
    let sandboxes = Sandboxes::new(config, supervisor(), dir.path()).unwrap();
    for (profile, pages, why) in [
        ("small", vec![], "/usr/bin/no-such-browser did not start"),
        ("wide", vec![], "displays have no network"),
        ("other", vec![], "there is no sandbox profile"),
        ("small", vec![page("ftp://a/b", "")], "scheme is not http"),
    ] {
        let error = sandboxes
            .open_display(owner(), profile, pages)
            .await
            .unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
    while !sandboxes.leases().is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The processes that descend from a process, itself included.
fn family(ancestor: u32) -> BTreeSet<u32> {
    let all = std::fs::read_dir("/proc").unwrap();
    let all = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let all: Vec<(u32, u32)> = all.filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = BTreeSet::from([ancestor]);
    loop {
        let before = found.len();
        found.extend(
            all.iter()
                .filter(|(_, of)| found.contains(of))
                .map(|(pid, _)| *pid)
                .collect::<Vec<_>>(),
        );
        if found.len() == before {
            return found;
        }
    }
}

/// Waits until none of the processes runs.
async fn wait_for_end(processes: &BTreeSet<u32>) {
    let runs = |pid: &u32| {
        family(*pid).len() > 1 || Path::new(&format!("/proc/{pid}/exe")).read_link().is_ok()
    };
    while processes.iter().any(runs) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn displays_end_and_leave_no_process() {
    let Some(fixture) = fixture(SandboxProfile {
        ttl: Duration::from_secs(3),
        ..SandboxProfile::default()
    }) else {
        return;
    };
    let display = open(&fixture, "").await;
    let supervisor = fixture.sandboxes.leases()[0].supervisor;
    let processes = family(supervisor);
    assert!(processes.len() > 4, "{processes:?}");
    display.release().await;
    assert!(fixture.sandboxes.leases().is_empty());
    wait_for_end(&processes).await;
    // One that is not used ends by itself.
    let display = open(&fixture, "").await;
    let processes = family(fixture.sandboxes.leases()[0].supervisor);
    wait_for_end(&processes).await;
    let ended = display.tree().await.unwrap_err();
    assert!(
        matches!(&ended, SandboxError::NotFound(reason) if reason.contains("ttl")),
        "{ended}"
    );
    drop(display);
    while !fixture.sandboxes.leases().is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // A page that uses too much memory ends the browser, and nothing else.
    let display = open(&fixture, "<script>var used = []; setInterval(() => { for (let n = 0; n < 50; n++) used.push(new Array(1e6).fill(Math.random())); }, 1);</script>").await;
    let ended = loop {
        if let Err(error) = display.act(Input::Wait(50)).await {
            break error;
        }
    };
    assert!(matches!(ended, SandboxError::NotFound(_)), "{ended}");
}

/// The process that is killed, started by the test below.
#[tokio::test]
#[ignore = "started by the_displays_of_a_killed_host_end"]
async fn owner_of_displays() {
    let Some(dir) = std::env::var_os(OWNER_DIR) else {
        return;
    };
    let config = browser_config(SandboxProfile::default()).unwrap();
    let sandboxes = Sandboxes::new(config, supervisor(), Path::new(&dir)).unwrap();
    let mut displays = Vec::new();
    for _ in 0..2 {
        let pages = vec![page("index.html", "<title>Open</title>")];
        let display = sandboxes
            .open_display(owner(), "small", pages)
            .await
            .unwrap();
        display.navigate("").await.unwrap();
        displays.push(display);
    }
    println!("\nstarted");
    std::io::stdout().flush().unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn the_displays_of_a_killed_host_end() {
    let Some(config) = browser_config(SandboxProfile::default()) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut host = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "display::owner_of_displays",
            "--ignored",
            "--nocapture",
        ])
        .env(OWNER_DIR, dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(host.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "started"));
    let mut processes = family(host.id());
    assert!(processes.remove(&host.id()));
    // Two supervisors, and for each bubblewrap, the first process, the browser and its processes.
    assert!(processes.len() > 10, "{processes:?}");
    host.kill().unwrap();
    host.wait().unwrap();
    wait_for_end(&processes).await;
    let next = Sandboxes::new(config, supervisor(), dir.path()).unwrap();
    assert!(next.leases().is_empty());
    let left = std::fs::read_dir(dir.path())
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().path().is_dir());
    assert_eq!(left.count(), 1, "only the directory of this process");
}
