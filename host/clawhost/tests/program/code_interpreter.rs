//! Python of the policy in real machines: what it can do, and what it must not reach.
//!
//! Needs bubblewrap, as the tests of machines, and Python below `/usr`.

use std::io::Read;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use clawhost_plugins::{Episode, Message, Role};
use serde_json::{Value, json};

use crate::machines::{Fixture, act};

const PROGRAM: &str = env!("CARGO_BIN_EXE_clawhost");
const CODE: &[u8] = include_bytes!("../../../../plugins/artifacts/environment-toolcall-code.wasm");
const TASKS: &str = include_str!("../../../../environments/toolcall-code/tasks.jsonl");

fn fixture() -> Option<Fixture> {
    if !Path::new("/usr/bin/python3").exists() {
        println!("not tested: there is no /usr/bin/python3");
        return None;
    }
    Fixture::with(CODE, "", PROGRAM)
}

fn payload() -> Value {
    json!({"answer": 19, "tools": ["code_interpreter"], "max_turns": 40, "profile": "default"})
}

async fn run(episode: &mut Episode, code: &str) -> String {
    let arguments = json!({"code": code});
    act(episode, "code_interpreter", arguments).await.0
}

#[tokio::test(flavor = "multi_thread")]
async fn code_is_run_and_the_answer_is_graded() {
    let Some(fixture) = fixture() else {
        return;
    };
    let line = TASKS.lines().next().unwrap();
    let task: Value = serde_json::from_str(line).unwrap();
    let (mut episode, seen) = fixture.start(&task).await;
    assert_eq!(seen.tools[0].name, "code_interpreter");
    let answer = run(&mut episode, task["solution"].as_str().unwrap()).await;
    assert_eq!(answer, task["answer"].to_string());
    // Files stay, names do not.
    run(&mut episode, "x = 1; open('kept', 'w').write('4')").await;
    assert_eq!(run(&mut episode, "print(open('kept').read())").await, "4");
    let trace = run(&mut episode, "print(x)").await;
    assert!(
        trace.starts_with("error: exit code: 1") && trace.contains("NameError"),
        "{trace}"
    );
    assert_eq!(run(&mut episode, "x = 2").await, "(it printed nothing)");
    let long = run(&mut episode, "print('a' * 100000)").await;
    assert!(long.len() < 10_000 && long.contains("dropped from the middle"));
    let reply = Message::text(Role::Assistant, format!("It is {answer}."));
    episode.step(&reply).await.outcome.unwrap();
    assert_eq!(episode.grade().await.outcome.unwrap().reward, 1.0);
    episode.close().await.outcome.unwrap();
    assert_eq!(fixture.left().await, Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn code_reaches_neither_the_host_nor_the_reward() {
    let Some(fixture) = fixture() else {
        return;
    };
    let secret = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = secret.path().join("secret");
    std::fs::write(&file, "the answer is 19").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (mut episode, _) = fixture.start(&payload()).await;
    let own = std::process::id();
    let escapes = [
        // Files of the host.
        format!("print(open({file:?}).read())"),
        "print(open('/etc/shadow').read())".to_owned(),
        "import os; print(os.listdir('/root'))".to_owned(),
        format!("import os; os.symlink({file:?}, 'link'); print(open('link').read())"),
        "open('/usr/bin/python3', 'ab').write(b'x')".to_owned(),
        // Processes of the host.
        format!("print(open('/proc/{own}/environ').read())"),
        "import os; os.kill(int(os.environ.get('SUPERVISOR', '1000000')), 9)".to_owned(),
        "print(open('/proc/1/mem', 'rb').read(1))".to_owned(),
        "open('/proc/sys/kernel/hostname', 'w').write('x')".to_owned(),
        "open('/proc/sysrq-trigger', 'w').write('b')".to_owned(),
        // The network.
        format!("import socket; socket.create_connection(('127.0.0.1', {port}), 2)"),
        "import socket; socket.create_connection(('1.1.1.1', 53), 2)".to_owned(),
        "import socket; print(socket.gethostbyname('example.org'))".to_owned(),
        "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)".to_owned(),
        // System calls.
        "import ctypes; c = ctypes.CDLL(None, use_errno=True); assert c.mount(b'none', b'/mnt', b'tmpfs', 0, None) == 0".to_owned(),
        "import ctypes; c = ctypes.CDLL(None); assert c.unshare(0x10000000) == 0".to_owned(),
        format!("import ctypes; c = ctypes.CDLL(None); assert c.ptrace(16, {own}, 0, 0) == 0"),
        "import os; os.setuid(0)".to_owned(),
        "import os; os.chroot('/')".to_owned(),
    ];
    for code in &escapes {
        let shown = run(&mut episode, code).await;
        assert!(shown.starts_with("error: exit code: 1"), "{code}: {shown}");
        assert!(!shown.contains("the answer is"), "{code}: {shown}");
    }
    assert!(
        listener.accept().is_err(),
        "code reached a port of the host"
    );
    // It sees its own processes only, and no variable of the host.
    let seen = run(
        &mut episode,
        "import os; print(sorted(os.environ), len([p for p in os.listdir('/proc') if p.isdigit()]))",
    )
    .await;
    assert!(
        !seen.contains("CARGO") && !seen.contains("CLAWHOST"),
        "{seen}"
    );
    let processes: u32 = seen.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(processes < 10, "{seen}");
    // Processes that outlive their call, memory, and the end of the machine are its own affair.
    run(
        &mut episode,
        "import os\nfor _ in range(1000):\n    os.fork()",
    )
    .await;
    let shown = run(&mut episode, "x = bytearray(1 << 33)").await;
    assert!(shown.starts_with("error: "), "{shown}");
    run(
        &mut episode,
        "import os, signal; os.kill(-1, signal.SIGKILL)",
    )
    .await;
    let reply = Message::text(Role::Assistant, "It is 18.");
    episode.step(&reply).await.outcome.unwrap();
    let outcome = episode.grade().await.outcome.unwrap();
    assert!(outcome.reward < 0.0 && outcome.success == Some(false));
    let mut text = String::new();
    std::fs::File::open(&file)
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, "the answer is 19");
    drop(episode);
    assert_eq!(fixture.left().await, Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn code_that_does_not_end_is_ended() {
    let Some(fixture) = fixture() else {
        return;
    };
    let mut payload = payload();
    payload["code_timeout"] = 0.5.into();
    let (mut episode, _) = fixture.start(&payload).await;
    let shown = run(
        &mut episode,
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: pass",
    )
    .await;
    assert_eq!(shown, "error: killed at its time limit");
    let shown = run(&mut episode, "print(1)").await;
    assert!(shown == "1" || shown == "error: killed at its time limit");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_bubblewrap_the_error_says_what_is_missing() {
    let fixture = Fixture::with_bwrap(CODE, "", PROGRAM, Path::new("/nowhere/bwrap"));
    let fault = fixture.try_start(&payload()).await.map(|_| ()).unwrap_err();
    let fault = fault.to_string();
    assert!(
        fault.contains("bubblewrap") && fault.contains("/nowhere/bwrap"),
        "{fault}"
    );
    // A task without code needs no machine.
    let (mut episode, _) = fixture.start(&json!({"answer": 19})).await;
    let reply = Message::text(Role::Assistant, "It is 19.");
    episode.step(&reply).await.outcome.unwrap();
    assert_eq!(episode.grade().await.outcome.unwrap().reward, 1.0);
}
