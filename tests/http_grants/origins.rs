//! One server with one judge per row: the allowed origin is reached in any spelling, and no other origin is.

use std::collections::BTreeMap;
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::path::Path;

use clawhost_journal::{Journal, JudgingState, TurnId, VerdictOutcome, VerdictRecord};
use clawhost_plugins::{GrantEditor, GrantEntry, Grants, digest};
use clawhost_tests::{Client, Command, Conversation, until};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::request_judge::HttpRequestJudge;
use super::site::{Site, WELCOME};

/// Expected result of a request.
enum Expected {
    /// The allowed site responds with this, at this path.
    Reached(&'static str, &'static str),
    /// The host denies it with this message.
    Denied(String),
}

fn denied(words: &str) -> Expected {
    Expected::Denied(words.to_owned())
}

/// An environment variable that every process has serves as the secret.
const SECRET: &str = "PATH";

/// A local host name that resolves to an internal address.
fn inside() -> String {
    let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let written = hosts.lines().flat_map(|line| {
        let line = line.split('#').next().unwrap_or_default();
        line.split_whitespace().skip(1).map(str::to_owned)
    });
    let own = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
    let private = |address: IpAddr| match address {
        IpAddr::V4(address) => {
            address.is_loopback() || address.is_private() || address.is_broadcast()
        }
        IpAddr::V6(address) => address.is_loopback(),
    };
    written
        .chain([own.trim().to_owned()])
        .filter(|name| name != "localhost" && !name.is_empty() && name.parse::<IpAddr>().is_err())
        .find(|name| {
            let found = (name.as_str(), 0).to_socket_addrs().ok();
            found.is_some_and(|mut all| all.all(|one| private(one.ip())))
        })
        .expect("a name beside localhost for an address of this machine, in /etc/hosts")
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_allowed_origin_is_reached_in_any_spelling() {
    let dir = TempDir::new().unwrap();
    // On all addresses, so that a misdirected request to any address of this machine is noticed.
    let trap = Site::on("0.0.0.0", "");
    let allowed = Site::on("127.0.0.1", &format!("http://127.0.0.1:{}/", trap.port()));
    let neighbour = Site::on("127.0.0.1", "");
    let (here, there) = (allowed.port(), trap.port());
    let inside = inside();
    let secret = std::env::var(SECRET).unwrap();
    let rows = table(here, there, &neighbour.origin(), &inside);

    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let mut book = GrantEditor::open(&data.join("grants.toml")).unwrap();
    let mut grants = Grants::default();
    for argument in [
        format!("http={}", allowed.origin()),
        format!("http={}", neighbour.origin()),
        format!("http=http://{inside}:{there}"),
        format!("secret=KEY:{SECRET}@{}", allowed.origin()),
    ] {
        grants.add(&argument).unwrap();
    }
    let mut arguments: Vec<String> = ["run", "--port", "0", "--no-train", "--data"]
        .map(str::to_owned)
        .to_vec();
    arguments.push(data.display().to_string());
    for (name, judge, _) in &rows {
        let file = dir.path().join(format!("{name}.wasm"));
        let component = judge.wasm();
        let entry = GrantEntry {
            plugin: (*name).to_owned(),
            at_ms: 0,
            wants: Vec::new(),
            grants: grants.clone(),
        };
        book.write(&digest(&component), entry).unwrap();
        std::fs::write(&file, component).unwrap();
        arguments.extend(["--plugin".to_owned(), file.display().to_string()]);
    }

    let mut server = Command::new(&arguments).serve().expect("a server");
    let client = Client::new(&server.url);
    let mut conversation = Conversation::new(&client);
    let turn = conversation.send_message("What is 12 - 5?").await.turn();
    conversation.send_message("Thanks!").await;
    let (verdicts, receipts) = judged(&data, turn).await;
    assert_eq!(server.stop().await, Some(0));

    let mut reached = Vec::new();
    for (name, judge, end) in &rows {
        let verdict = &verdicts[&format!("plugin:{name}")];
        let receipt = &receipts[*name];
        let what = format!("{name} ({:?}): {verdict:?} {receipt}", judge.url);
        assert_eq!(receipt["http_calls"], 1, "{what}");
        assert!(
            !verdict.rationale.contains(&secret),
            "{name} leaks the secret"
        );
        match end {
            Expected::Reached(path, says) => {
                assert_eq!(receipt["outcome"]["is"], "ok", "{what}");
                assert!(verdict.rationale.contains(says), "{what}");
                reached.push(*path);
            }
            Expected::Denied(words) => {
                let outcome = json!({"is": "refused", "kind": "denied"});
                assert_eq!(receipt["outcome"], outcome, "{what}");
                let none = matches!(verdict.outcome, VerdictOutcome::None { .. });
                assert!(none && verdict.rationale.contains(words), "{what}");
            }
        }
    }
    // Each request arrived once, without smuggled requests.
    let seen = allowed.seen();
    let paths: Vec<&str> = seen
        .iter()
        .map(|head| head.split(' ').nth(1).unwrap())
        .collect();
    assert_eq!(paths, reached);
    for head in &seen {
        let hosts: Vec<&str> = head.lines().filter(|l| l.starts_with("host:")).collect();
        assert_eq!(hosts, [format!("host: 127.0.0.1:{here}")], "{head}");
    }
    // The only allowed origin got the secret.
    let with_secret: Vec<&String> = seen.iter().filter(|head| head.contains(&secret)).collect();
    assert_eq!(with_secret.len(), 1);
    assert!(with_secret[0].starts_with("GET /echo "));

    // No other site got a request.
    for silent in [&trap, &neighbour] {
        assert_eq!(silent.seen(), Vec::<String>::new());
        drop(TcpStream::connect(("127.0.0.1", silent.port())).unwrap());
        let journal = Journal::open_read_only(&data).unwrap();
        until(&journal, "the connection is noted", || {
            (silent.seen().len() == 1).then_some(())
        })
        .await;
    }
}

/// The verdicts by source and the receipts by plugin, once the turn is judged.
async fn judged(
    data: &Path,
    turn: TurnId,
) -> (BTreeMap<String, VerdictRecord>, BTreeMap<String, Value>) {
    let journal = Journal::open_read_only(data).unwrap();
    until(&journal, "the turn is judged", || {
        let state = journal.turn(turn).unwrap()?.judging;
        matches!(state, JudgingState::Done | JudgingState::Skipped).then_some(())
    })
    .await;
    let verdicts = journal.verdicts(turn).unwrap();
    let receipts = journal.receipts(turn).unwrap();
    let by_plugin = |receipt: Value| (receipt["plugin"].as_str().unwrap().to_owned(), receipt);
    (
        verdicts
            .into_iter()
            .map(|verdict| (verdict.source.clone(), verdict))
            .collect(),
        receipts.into_iter().map(by_plugin).collect(),
    )
}

/// `here` is the allowed port on 127.0.0.1, `there` one that is not allowed.
fn table(
    here: u16,
    there: u16,
    neighbour: &str,
    inside: &str,
) -> Vec<(&'static str, HttpRequestJudge, Expected)> {
    // The longer word first, because it ends with the shorter one.
    let filled = |text: &str| {
        let text = text.replace("THERE", &there.to_string());
        text.replace("HERE", &here.to_string())
    };
    let at = |url: &str| HttpRequestJudge::to(filled(url));
    let home = || at("http://127.0.0.1:HERE/echo");
    let not = |origin: &str| Expected::Denied(format!("origin {} is not granted", filled(origin)));
    let not_there = || not("http://127.0.0.1:THERE");
    let root = || Expected::Reached("/", WELCOME);
    let key = "{{secret:KEY}}";
    vec![
        (
            "plain",
            at("http://127.0.0.1:HERE/v1?q=1"),
            Expected::Reached("/v1?q=1", WELCOME),
        ),
        // Other spellings of the allowed origin.
        ("decimal", at("http://2130706433:HERE/"), root()),
        ("octal", at("http://0177.0.0.1:HERE/"), root()),
        ("hexadecimal", at("http://0x7f000001:HERE/"), root()),
        ("short", at("HTTP://127.1:HERE"), root()),
        ("dot-after", at("http://127.0.0.1.:HERE/"), root()),
        // Other spellings of another origin.
        ("other-port", at("http://127.0.0.1:THERE/"), not_there()),
        (
            "default-port",
            at("http://127.0.0.1/"),
            not("http://127.0.0.1"),
        ),
        (
            "other-host",
            at("http://127.0.0.2:HERE/"),
            not("http://127.0.0.2:HERE"),
        ),
        (
            "zero",
            at("http://0.0.0.0:HERE/"),
            not("http://0.0.0.0:HERE"),
        ),
        ("other-decimal", at("http://2130706433:THERE/"), not_there()),
        ("other-octal", at("http://0177.0.0.01:THERE/"), not_there()),
        (
            "other-hexadecimal",
            at("http://0x7f.0x0.0x0.0x1:THERE/"),
            not_there(),
        ),
        ("other-short", at("http://127.1:THERE/"), not_there()),
        (
            "other-dot-after",
            at("http://127.0.0.1.:THERE/"),
            not_there(),
        ),
        (
            "full-width",
            at("http://\u{ff11}27.0.0.1:THERE/"),
            not_there(),
        ),
        (
            "mapped",
            at("http://[::ffff:127.0.0.1]:HERE/"),
            not("http://[::ffff:7f00:1]:HERE"),
        ),
        ("sixth", at("http://[::1]:HERE/"), not("http://[::1]:HERE")),
        (
            "named",
            at("http://localhost:HERE/"),
            not("http://localhost:HERE"),
        ),
        (
            "named-dot",
            at("http://localhost.:THERE/"),
            not("http://localhost.:THERE"),
        ),
        (
            "metadata",
            at("http://169.254.169.254/latest/meta-data/"),
            not("http://169.254.169.254"),
        ),
        // The name is granted, the address it resolves to is not.
        (
            "inside",
            HttpRequestJudge::to(format!("http://{inside}:{there}/")),
            denied("which is not on the public internet"),
        ),
        // Schemes and parts of URLs.
        (
            "secure",
            at("https://127.0.0.1:HERE/"),
            not("https://127.0.0.1:HERE"),
        ),
        (
            "ftp",
            at("ftp://127.0.0.1:HERE/"),
            denied("only http and https"),
        ),
        (
            "file",
            at("file:///etc/passwd"),
            denied("only http and https"),
        ),
        ("no-host", at("/v1"), denied("the URL cannot be read")),
        (
            "user",
            at("http://me:pw@127.0.0.1:HERE/"),
            denied("credentials in a URL are not allowed"),
        ),
        (
            "user-as-host",
            at("http://127.0.0.1:HERE@127.0.0.1:THERE/"),
            denied("credentials in a URL are not allowed"),
        ),
        (
            "back-slash",
            at("http://127.0.0.1:THERE\\@127.0.0.1:HERE/"),
            not_there(),
        ),
        (
            "fragment",
            at("http://127.0.0.1:THERE/#@127.0.0.1:HERE/"),
            not_there(),
        ),
        // A URL within the path stays part of the path.
        (
            "absolute",
            at("http://127.0.0.1:HERE/http://elsewhere.example/"),
            Expected::Reached("/http://elsewhere.example/", WELCOME),
        ),
        (
            "double-slash",
            at("http://127.0.0.1:HERE//elsewhere.example/"),
            Expected::Reached("//elsewhere.example/", WELCOME),
        ),
        (
            "break-in-path",
            at("http://127.0.0.1:HERE/a HTTP/1.1\r\nhost: elsewhere.example\r\n\r\n"),
            Expected::Reached("/a%20HTTP/1.1host:%20elsewhere.example", WELCOME),
        ),
        (
            "redirect",
            at("http://127.0.0.1:HERE/away"),
            Expected::Reached("/away", "moved"),
        ),
        // Methods and headers.
        (
            "tunnel",
            home().method("CONNECT"),
            denied("method \"CONNECT\""),
        ),
        (
            "break-in-value",
            home().with("x", "a\r\nhost: elsewhere.example"),
            denied("not printable ASCII"),
        ),
        (
            "break-in-name",
            home().with("x: a\r\nhost", "elsewhere.example"),
            denied("is no name of a header"),
        ),
        (
            "hosts-own",
            home().with("Host", "elsewhere.example"),
            denied("is the host's own"),
        ),
        // The secret: only to its origin, only in a header, and redacted in responses.
        (
            "secret",
            home().with("Authorization", key),
            Expected::Reached("/echo", key),
        ),
        (
            "secret-elsewhere",
            HttpRequestJudge::to(neighbour).with("Authorization", key),
            Expected::Denied(format!("secret KEY is not granted for {neighbour}")),
        ),
        (
            "secret-in-url",
            at("http://127.0.0.1:HERE/?{{secret:KEY}}"),
            denied("not in the URL or body"),
        ),
        (
            "secret-in-body",
            home().method("POST").body(key),
            denied("not in the URL or body"),
        ),
        (
            "other-secret",
            home().with("x", "{{secret:HOME}}"),
            denied("secret HOME is not granted"),
        ),
    ]
}
