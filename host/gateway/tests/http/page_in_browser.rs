//! The operator page in headless Chromium: plots, live updates, chat, feedback, releases and keys. Passes without a test
//! if there is no Chromium. `CLAWHOST_SCREENSHOTS=FOLDER` writes pictures of the page there.

use std::path::PathBuf;

use clawhost_config::AdapterScope;
use clawhost_gateway::{ApiKey, Scope};
use clawhost_journal::{AdapterOwner, Feedback, TurnId, VerdictOutcome, VerdictRecord, now_ms};
use serde_json::{Value, json};

use crate::chromium::{Chromium, program};
use crate::server::{Server, chat_body};

/// Markup that must appear as text.
const MARKUP: &str = "<img src=x onerror=alert(1)>";

/// Runs `drive` with a browser off the async threads; without Chromium, prints that the test was skipped.
#[allow(clippy::print_stdout, reason = "says that nothing was tested")]
async fn with_browser(server: Server, drive: fn(&Server, &mut Chromium)) {
    let Some(program) = program() else {
        println!("skipped: no Chromium; set CLAWHOST_CHROMIUM or install chromium");
        return;
    };
    let driven = tokio::task::spawn_blocking(move || {
        let mut browser = Chromium::start(&program);
        drive(&server, &mut browser);
        assert_eq!(browser.errors, Vec::<String>::new());
    });
    driven.await.unwrap();
}

/// Replies with verdicts, and steps with metrics that published two versions.
async fn seed(server: &Server) {
    for (index, text) in [
        "Is 7 greater than 5? A",
        "Greet me. H",
        MARKUP,
        "Compute 2 + 2. R",
    ]
    .into_iter()
    .cycle()
    .take(12)
    .enumerate()
    {
        let text = format!("{text}{}", if text == MARKUP { "X" } else { "" });
        let turn = TurnId(server.chat(&text).await.turn());
        let feedback = Feedback {
            turn,
            score: Some(1.0),
            text: None,
            ms: now_ms(),
        };
        server.journal.add_feedback(&feedback).unwrap();
        let reward = [1.0, 0.5, -1.0, 0.0][index % 4];
        let verdict = VerdictRecord {
            source: "plugin:judge-next-state".to_owned(),
            digest: None,
            outcome: match index {
                9 => VerdictOutcome::None {
                    reason: "unsupported: the next state is a tool result".to_owned(),
                },
                _ => VerdictOutcome::Verdict {
                    reward,
                    accept: true,
                },
            },
            votes: Vec::new(),
            rationale: String::new(),
            metrics: Default::default(),
            ms: now_ms(),
        };
        let judged = server
            .journal
            .commit_judgement(turn, &[verdict], None, None, &[]);
        judged.unwrap();
    }
    let releases = server.loops.releases.get().unwrap();
    for version in 1..=12 {
        releases.publish_with(version, metrics(version));
    }
    let plugins = json!([
        {"name": "judge-next-state", "kind": "judge", "digest": "5f3a9c0d1e2b48aa01", "imports": []},
        {"name": MARKUP, "kind": "loss", "digest": "0c9d8e7f6a5b4c3d2e", "imports": [],
         "refused": {"digest": "77", "reason": "the export `clawhost:plugin/loss` is missing"}},
    ]);
    let costs = json!([{
        "name": "judge-next-state", "calls": 341, "ok": 338, "refused": {"unsupported": 3}, "faults": {},
        "deadline_exceeded": 0, "wall_p50_us": 84, "wall_p99_us": 1310, "queued_p99_us": 4, "cpu_us": 48_200,
        "fuel": 48_000_000, "peak_memory_bytes": 1_310_720, "model_calls": 0, "model_tokens": 0, "http_calls": 0,
    }]);
    server.loops.plugins.set((plugins, costs)).unwrap();
}

fn metrics(step: u64) -> Value {
    let at = step as f64;
    json!({
        "reward_mean": 0.2 + 0.05 * at - 0.1 * (at * 1.7).sin(), "rewarded": 8,
        "kl_reference": 0.0008 * at, "kl_old": 0.0002 + 0.0001 * (at * 2.1).cos(),
        "loss_first": 0.01 * at.sin(), "loss_last": -0.05 - 0.02 * at.cos(), "gradient_norm": 0.41 + 0.03 * at.sin(),
    })
}

fn text(browser: &mut Chromium, selector: &str) -> String {
    let expression = format!("document.querySelector({}).innerText", json!(selector));
    browser.evaluate(&expression).as_str().unwrap().to_owned()
}

/// Writes a message in the chat box and sends it.
fn say(browser: &mut Chromium, message: &str) {
    let set = format!(
        "document.getElementById('chat-input').value = {}",
        json!(message)
    );
    browser.evaluate(&set);
    browser.click("#chat-send");
}

/// Clicks a button and confirms the question, which must name the version.
fn confirm(browser: &mut Chromium, button: &str, question: &str) {
    browser.click(button);
    browser.wait_for("document.getElementById('dialog').open");
    assert_eq!(text(browser, "#dialog-title"), question);
    browser.click("#dialog-confirm");
}

/// The button of a version in the table of adapter versions.
fn change(version: u64, button: u64) -> String {
    let row = 13 - version;
    format!("#adapters tbody tr:nth-child({row}) button:nth-child({button})")
}

#[tokio::test(flavor = "multi_thread")]
async fn page_shows_the_state_and_changes_it() {
    let server = Server::start().await;
    seed(&server).await;
    with_browser(server, |server, browser| {
        browser.open(&format!("http://{}/", server.address));
        browser.wait_for("document.getElementById('live').textContent === 'live'");
        browser.wait_for("document.body.dataset.snapshots >= 1");
        shows_plots_and_tables(browser);
        chats(server, browser);
        edits_experience(server, browser);
        changes_releases(server, browser);
        if let Some(folder) = std::env::var_os("CLAWHOST_SCREENSHOTS") {
            let folder = PathBuf::from(folder);
            for (name, width, scheme) in [
                ("light", 1280, "light"),
                ("dark", 1280, "dark"),
                ("phone", 390, "light"),
                ("phone-dark", 390, "dark"),
            ] {
                browser.screenshot(width, scheme, &folder.join(format!("{name}.png")));
            }
        }
        fits_a_phone(browser);
        reconnects_or_says_so(server, browser);
    })
    .await;
}

fn shows_plots_and_tables(browser: &mut Chromium) {
    assert_eq!(
        browser.evaluate("document.querySelectorAll('#plots svg').length"),
        6
    );
    assert_eq!(
        browser.evaluate("document.querySelectorAll('circle.reward').length"),
        11
    );
    for line in [
        "mean",
        "reference",
        "old",
        "last",
        "first",
        "norm",
        "version",
    ] {
        let drawn = format!("document.querySelector('polyline.{line}').points.length > 5");
        assert_eq!(browser.evaluate(&drawn), true, "{line}");
    }
    assert_eq!(
        browser.evaluate("document.querySelectorAll('#turns tbody tr').length"),
        12
    );
    assert_eq!(
        browser.evaluate("document.querySelectorAll('#steps tbody tr').length"),
        12
    );
    let plugins = text(browser, "#plugins");
    for shown in [
        "341",
        "unsupported 3",
        "84 µs / 1.3 ms",
        "1.3 MiB",
        MARKUP,
        "is missing",
    ] {
        assert!(plugins.contains(shown), "{shown}: {plugins}");
    }
    let turns = text(browser, "#turns");
    for shown in [
        MARKUP,
        "<script>alert(1)</script>",
        "-1.00 plugin:judge-next-state",
    ] {
        assert!(turns.contains(shown), "{shown}: {turns}");
    }
    assert_eq!(
        browser.evaluate("document.querySelectorAll('img').length"),
        0
    );
    // No cell is so narrow that it breaks a word into letters.
    let narrow = "[...document.querySelectorAll('#turns td.text')].filter((cell) => cell.clientWidth < 200).length";
    assert_eq!(browser.evaluate(narrow), 0);
}

fn chats(server: &Server, browser: &mut Chromium) {
    say(browser, "Greet me. H");
    browser.wait_for(
        "document.querySelector('.message.assistant .content')?.textContent === 'Hello, wörld!'",
    );
    browser.wait_for("document.querySelectorAll('.message.assistant .meta button').length === 2");
    let meta = text(browser, ".message.assistant .meta");
    assert!(
        meta.contains("turn 13") && meta.contains("adapter 12:"),
        "{meta}"
    );
    browser.click(".message.assistant .meta button");
    browser.wait_for(
        "document.querySelector('.message.assistant .meta').innerText.includes('feedback +1.00 recorded')",
    );
    assert_eq!(server.turn(13).feedback.len(), 1);
    // The stream brings the new turn.
    browser.wait_for("document.querySelector('#turns tbody td button').textContent === '13'");
    say(browser, "X");
    browser.wait_for(
        "document.querySelectorAll('.message.assistant')[1]?.innerText.includes('</script>')",
    );
    browser.wait_for(
        "document.querySelectorAll('.message.assistant')[1].innerText.includes('turn 14')",
    );
    browser.wait_for("!document.getElementById('chat-send').hidden");
    assert_eq!(server.turn(13).session, server.turn(14).session);
    say(browser, "L");
    browser.wait_for(
        "document.querySelectorAll('.message.assistant')[2]?.innerText.includes('la la')",
    );
    browser.click("#chat-stop");
    browser.wait_for(
        "document.querySelectorAll('.message.assistant')[2].innerText.includes('stopped')",
    );
}

fn edits_experience(server: &Server, browser: &mut Chromium) {
    let hidden = "document.getElementById('experience-section').hidden";
    browser.wait_for(hidden);
    crate::experience::say(&server.journal, 13, "Please answer in <b>one</b> sentence.");
    let field = "document.querySelector('#experience textarea')";
    browser.wait_for(&format!(
        "{field}?.value === 'Please answer in <b>one</b> sentence.'"
    ));
    browser.click("#experience .actions button");
    let state = "document.querySelector('#experience [data-label=state]').innerText";
    browser.wait_for(&format!("{state}.includes('retired by hand')"));
    browser.evaluate(&format!(
        "{field}.value = 'Be brief.'; {field}.dispatchEvent(new Event('change'))"
    ));
    browser.wait_for(&format!("{state} === 'active'"));
    assert_eq!(
        server.journal.experience(None).unwrap()[0].text,
        "Be brief."
    );
    confirm(
        browser,
        "#experience .actions button:nth-child(2)",
        "Delete this entry?",
    );
    browser.wait_for(hidden);
    assert!(server.journal.experience(None).unwrap().is_empty());
}

fn changes_releases(server: &Server, browser: &mut Chromium) {
    let active = |version: u64| {
        format!(
            "document.getElementById('release-state').innerText.includes('Active: version {version}')"
        )
    };
    browser.wait_for(&active(12));
    confirm(browser, &change(3, 1), "Promote version 3?");
    browser.wait_for(&active(3));
    assert_eq!(server.engine.active().version, 3);
    confirm(browser, "#rollback", "Roll back to version 12?");
    browser.wait_for(&active(12));
    confirm(browser, &change(11, 2), "Pin version 11?");
    browser.wait_for(&active(11));
    browser.wait_for("document.getElementById('rollback').disabled");
    // While a version is pinned, the API rejects a promotion, and the page shows why.
    browser.evaluate(&format!(
        "document.querySelector('{}').disabled = false",
        change(5, 1)
    ));
    confirm(browser, &change(5, 1), "Promote version 5?");
    browser.wait_for("document.getElementById('release-error').innerText.includes('pinned')");
    confirm(browser, "#unpin", "Unpin version 11?");
    browser.wait_for("document.getElementById('unpin').hidden");
    // A cancelled change is not sent.
    browser.click(&change(2, 1));
    browser.wait_for("document.getElementById('dialog').open");
    browser.click("#dialog-cancel");
    assert_eq!(server.engine.active().version, 11);
    assert_eq!(server.journal.releases(1).unwrap()[0].version, 11);
    // The next version arrives by itself.
    server
        .loops
        .releases
        .get()
        .unwrap()
        .publish_with(13, metrics(13));
    browser.wait_for(&active(13));
    browser.wait_for("document.querySelectorAll('#steps tbody tr').length === 13");
}

fn fits_a_phone(browser: &mut Chromium) {
    let metrics = json!({"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": true});
    browser.call("Emulation.setDeviceMetricsOverride", metrics);
    browser.wait_for("innerWidth === 390 && document.documentElement.scrollWidth <= 390");
    let label = "getComputedStyle(document.querySelector('#turns td'), '::before').content";
    assert_eq!(browser.evaluate(label), "\"turn\"");
}

fn reconnects_or_says_so(server: &Server, browser: &mut Chromium) {
    server.stop.send(true).unwrap();
    browser.wait_for("document.getElementById('live').textContent === 'reconnecting'");
}

#[tokio::test(flavor = "multi_thread")]
async fn page_asks_for_a_key_and_shows_what_it_may_see() {
    let server = Server::with(|options| {
        options.keys = vec![
            ApiKey::new("ann", "key-of-ann", [Scope::Chat]).unwrap(),
            ApiKey::new("ops", "key-of-ops", Scope::ALL).unwrap(),
        ];
    })
    .await;
    for (key, text) in [("key-of-ann", "of ann A"), ("key-of-ops", "of ops B")] {
        let request = server.request(reqwest::Method::POST, "/v1/chat/completions");
        let request = request.bearer_auth(key).json(&chat_body(text, json!({})));
        assert_eq!(request.send().await.unwrap().status(), 200);
    }
    with_browser(server, |server, browser| {
        browser.open(&format!("http://{}/", server.address));
        enter(browser, "key-of-nobody");
        browser
            .wait_for("document.getElementById('key-error').innerText.includes('invalid API key')");
        enter(browser, "key-of-ann");
        browser.wait_for("document.body.dataset.snapshots >= 1");
        assert_eq!(text(browser, "#who"), "key ann");
        let page = text(browser, "body");
        assert!(
            page.contains("of ann A") && !page.contains("of ops B"),
            "{page}"
        );
        let hidden = "[...document.querySelectorAll('.operator')].every((node) => node.hidden)";
        assert_eq!(browser.evaluate(hidden), true);
        assert_eq!(browser.evaluate("localStorage.length"), 0);
        assert_eq!(browser.evaluate("document.cookie"), "");
        // Without the scope for feedback there are no buttons for it.
        say(browser, "H");
        browser
            .wait_for("document.querySelector('.message.assistant')?.innerText.includes('turn 3')");
        assert_eq!(
            browser.evaluate("document.querySelectorAll('.message button').length"),
            0
        );
        browser.click("#forget-key");
        browser.wait_for(
            "!document.body.dataset.snapshots && !document.getElementById('key-form').hidden",
        );
        assert_eq!(browser.evaluate("sessionStorage.length"), 0);
        assert!(!text(browser, "body").contains("of ann A"));
        enter(browser, "key-of-ops");
        browser.wait_for("document.body.dataset.snapshots >= 1");
        let page = text(browser, "body");
        for shown in [
            "of ann A",
            "of ops B",
            "Adapter versions",
            "judge-next-state",
        ] {
            assert!(page.contains(shown), "{shown}: {page}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn page_shows_and_changes_the_adapter_of_the_chosen_owner() {
    let server = Server::with(|options| {
        options.adapters = AdapterScope::Key;
        options.keys = vec![
            ApiKey::new("ann", "key-of-ann", [Scope::Chat]).unwrap(),
            ApiKey::new("bob", "key-of-bob", [Scope::Chat]).unwrap(),
            ApiKey::new("ops", "key-of-ops", Scope::ALL).unwrap(),
        ];
    })
    .await;
    let releases = server.loops.releases.get().unwrap();
    let (ann, bob) = (AdapterOwner::of_key("ann"), AdapterOwner::of_key("bob"));
    for (owner, version) in [(&ann, 1), (&bob, 2), (&ann, 3)] {
        releases.publish_of(Some(owner), version, metrics(version));
    }
    for (key, text) in [("key-of-ann", "of ann A"), ("key-of-bob", "of bob B")] {
        let request = server.request(reqwest::Method::POST, "/v1/chat/completions");
        let request = request.bearer_auth(key).json(&chat_body(text, json!({})));
        assert_eq!(request.send().await.unwrap().status(), 200);
    }
    with_browser(server, |server, browser| {
        let rows = |table: &str, count: u64| {
            format!("document.querySelectorAll('#{table} tbody tr').length === {count}")
        };
        browser.open(&format!("http://{}/", server.address));
        enter(browser, "key-of-ops");
        browser.wait_for("document.getElementById('owners').hidden === false");
        browser.wait_for(&rows("adapters", 3));
        let state = text(browser, "#release-state");
        assert!(state.contains("Choose an owner"), "{state}");
        assert_eq!(
            browser.evaluate("document.querySelectorAll('#adapters button').length"),
            0
        );
        choose(browser, "key:ann");
        // Its versions, and the base model.
        browser.wait_for(&rows("adapters", 3));
        browser.wait_for(&rows("steps", 2));
        browser.wait_for(&rows("turns", 1));
        assert!(text(browser, "#turns").contains("of ann A"));
        browser.wait_for(
            "document.getElementById('release-state').innerText.includes('Active: version 3')",
        );
        confirm(browser, "#rollback", "Roll back to version 1?");
        browser.wait_for(
            "document.getElementById('release-state').innerText.includes('Active: version 1')",
        );
        let of = |name| {
            let owner = AdapterOwner::of_key(name);
            server
                .journal
                .release_state_of(Some(&owner))
                .unwrap()
                .version
        };
        assert_eq!((of("ann"), of("bob")), (1, 2));
        if let Some(folder) = std::env::var_os("CLAWHOST_SCREENSHOTS") {
            browser.screenshot(1280, "light", &PathBuf::from(folder).join("owner.png"));
        }
        // The choice survives a reload, and goes with the key.
        browser.evaluate("location.reload()");
        browser.wait_for("document.getElementById('owner')?.value === 'key:ann'");
        browser.wait_for(&rows("turns", 1));
        choose(browser, "");
        browser.wait_for(&rows("turns", 2));
        choose(browser, "key:bob");
        browser.wait_for(&rows("steps", 1));
        browser.click("#forget-key");
        browser.wait_for(
            "!document.body.dataset.snapshots && !document.getElementById('key-form').hidden",
        );
        assert_eq!(browser.evaluate("sessionStorage.length"), 0);
    })
    .await;
}

/// Chooses the owner whose records are shown.
fn choose(browser: &mut Chromium, owner: &str) {
    let owner = json!(owner);
    browser.evaluate(&format!(
        "document.getElementById('owner').value = {owner}; document.getElementById('owner').dispatchEvent(new Event('change'))"
    ));
}

/// Enters a key in the form.
fn enter(browser: &mut Chromium, key: &str) {
    browser.wait_for("document.getElementById('key-form')?.hidden === false");
    browser.evaluate(&format!("document.getElementById('key').value = '{key}'"));
    browser.click("#key-form button");
}
