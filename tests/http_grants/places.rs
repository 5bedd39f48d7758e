//! One server, one judge for each row: the allowed origin is reached, in whatever spelling, and nothing else is.

use std::collections::BTreeMap;
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::path::Path;

use clawhost_journal::{Journal, JudgingState, TurnId, VerdictOutcome, VerdictRecord};
use clawhost_plugins::{GrantEditor, GrantedTo, Grants, digest};
use clawhost_tests::{Client, Command, Talk, until};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::errand::Errand;
use super::site::{Site, WELCOME};

/// What becomes of an errand.
enum End {
    /// The allowed site answers this, at this path.
    Reached(&'static str, &'static str),
    /// The host denies it, with these words.
    Denied(String),
}

fn denied(words: &str) -> End {
    End::Denied(words.to_owned())
}

/// A variable that every process has stands for a secret.
const SECRET: &str = "PATH";

/// A name of this machine's own that leads to an address inside it.
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
async fn the_allowed_origin_is_reached_in_any_spelling_and_nothing_else_is() {
    let dir = TempDir::new().unwrap();
    // On all addresses, so that a spelling that led astray would be noticed wherever it led on this machine.
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
    for (name, errand, _) in &rows {
        let file = dir.path().join(format!("{name}.wasm"));
        let component = errand.wasm();
        let entry = GrantedTo {
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
    let mut talk = Talk::new(&client);
    let turn = talk.say("What is 12 - 5?").await.turn();
    talk.say("Thanks!").await;
    let (verdicts, receipts) = judged(&data, turn).await;
    assert_eq!(server.stop().await, Some(0));

    let mut reached = Vec::new();
    for (name, errand, end) in &rows {
        let verdict = &verdicts[&format!("plugin:{name}")];
        let receipt = &receipts[*name];
        let what = format!("{name} ({:?}): {verdict:?} {receipt}", errand.url);
        assert_eq!(receipt["http_calls"], 1, "{what}");
        assert!(!verdict.rationale.contains(&secret), "{name} tells");
        match end {
            End::Reached(path, says) => {
                assert_eq!(receipt["outcome"]["is"], "ok", "{what}");
                assert!(verdict.rationale.contains(says), "{what}");
                reached.push(*path);
            }
            End::Denied(words) => {
                let outcome = json!({"is": "refused", "kind": "denied"});
                assert_eq!(receipt["outcome"], outcome, "{what}");
                let none = matches!(verdict.outcome, VerdictOutcome::None { .. });
                assert!(none && verdict.rationale.contains(words), "{what}");
            }
        }
    }
    // Each went there once, with a request of its own and nothing smuggled into it.
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
    // The one place that may have the secret got it.
    let told: Vec<&String> = seen.iter().filter(|head| head.contains(&secret)).collect();
    assert_eq!(told.len(), 1);
    assert!(told[0].starts_with("GET /echo "));

    // Nobody else was asked, and would have noticed.
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

/// `here` is the port that is allowed on 127.0.0.1, `there` one that is not.
fn table(here: u16, there: u16, neighbour: &str, inside: &str) -> Vec<(&'static str, Errand, End)> {
    // The longer word first: it ends with the shorter one.
    let filled = |text: &str| {
        let text = text.replace("THERE", &there.to_string());
        text.replace("HERE", &here.to_string())
    };
    let at = |url: &str| Errand::to(filled(url));
    let home = || at("http://127.0.0.1:HERE/echo");
    let not = |origin: &str| End::Denied(format!("origin {} is not granted", filled(origin)));
    let not_there = || not("http://127.0.0.1:THERE");
    let root = || End::Reached("/", WELCOME);
    let key = "{{secret:KEY}}";
    vec![
        (
            "plain",
            at("http://127.0.0.1:HERE/v1?q=1"),
            End::Reached("/v1?q=1", WELCOME),
        ),
        // Other spellings of the allowed place are that place.
        ("decimal", at("http://2130706433:HERE/"), root()),
        ("octal", at("http://0177.0.0.1:HERE/"), root()),
        ("hexadecimal", at("http://0x7f000001:HERE/"), root()),
        ("short", at("HTTP://127.1:HERE"), root()),
        ("dot-after", at("http://127.0.0.1.:HERE/"), root()),
        // And of another place are another.
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
        // This very name is granted; where it leads is not.
        (
            "inside",
            Errand::to(format!("http://{inside}:{there}/")),
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
            denied("only http and https are"),
        ),
        (
            "file",
            at("file:///etc/passwd"),
            denied("only http and https are"),
        ),
        ("no-host", at("/v1"), denied("the URL cannot be read")),
        (
            "user",
            at("http://me:pw@127.0.0.1:HERE/"),
            denied("a URL with credentials is not taken"),
        ),
        (
            "user-as-host",
            at("http://127.0.0.1:HERE@127.0.0.1:THERE/"),
            denied("a URL with credentials is not taken"),
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
        // A URL within the path stays there.
        (
            "absolute",
            at("http://127.0.0.1:HERE/http://elsewhere.example/"),
            End::Reached("/http://elsewhere.example/", WELCOME),
        ),
        (
            "double-slash",
            at("http://127.0.0.1:HERE//elsewhere.example/"),
            End::Reached("//elsewhere.example/", WELCOME),
        ),
        (
            "break-in-path",
            at("http://127.0.0.1:HERE/a HTTP/1.1\r\nhost: elsewhere.example\r\n\r\n"),
            End::Reached("/a%20HTTP/1.1host:%20elsewhere.example", WELCOME),
        ),
        (
            "redirect",
            at("http://127.0.0.1:HERE/away"),
            End::Reached("/away", "moved"),
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
        // The secret: to its origin, in a header, and back to nobody.
        (
            "secret",
            home().with("Authorization", key),
            End::Reached("/echo", key),
        ),
        (
            "secret-elsewhere",
            Errand::to(neighbour).with("Authorization", key),
            End::Denied(format!("secret KEY is not granted for {neighbour}")),
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
