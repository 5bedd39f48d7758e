//! What a machine does for an environment.

use std::time::Duration;

use clawhost_config::SandboxProfile;
use clawhost_sandbox::{Command, Exit, Owner, SandboxError, Sandboxes, Spec};

use crate::{Fixture, line, owner, run, small, spec, stdout, supervisor, text};

#[tokio::test]
async fn commands_return_their_output_and_exit() {
    let Some(fixture) = Fixture::new(small()) else {
        return;
    };
    let machine = fixture.machine().await;
    let mut command = line("cat; echo \"$GREETING\" >&2; pwd; exit 3");
    command.stdin = b"from stdin\n".to_vec();
    command.env = vec![("GREETING".to_owned(), "hello".to_owned())];
    command.workdir = Some("/tmp".to_owned());
    let output = machine.exec(command).await.unwrap();
    assert_eq!(output.exit, Exit::Code(3));
    assert_eq!(text(&output.stdout), "from stdin\n/tmp\n");
    assert_eq!(text(&output.stderr), "hello\n");
    assert!(!output.truncated);
    assert_eq!(run(&machine, "kill -USR1 $$").await.exit, Exit::Signal(10));
    let missing = machine
        .exec(Command::new(["no-such-program"]))
        .await
        .unwrap();
    assert_eq!(missing.exit, Exit::Code(127));
    assert!(text(&missing.stderr).contains("no-such-program"));
    let denied = machine.exec(Command::new(["/etc/passwd"])).await.unwrap();
    assert_eq!(denied.exit, Exit::Code(126));
    let empty = machine.exec(Command::new(Vec::<String>::new())).await;
    assert!(matches!(empty, Err(SandboxError::Denied(_))));
    machine.release().await;
    assert!(fixture.sandboxes.leases().is_empty());
}

#[tokio::test]
async fn input_that_is_not_read_and_output_that_is_too_long_are_no_obstacle() {
    let Some(fixture) = Fixture::new(small()) else {
        return;
    };
    let machine = fixture.machine().await;
    let mut command = line("true");
    command.stdin = vec![b'x'; 1 << 20];
    assert_eq!(machine.exec(command).await.unwrap().exit, Exit::Code(0));
    let mut command =
        line("echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last; echo error >&2");
    command.max_output = 1000;
    let output = machine.exec(command).await.unwrap();
    assert!(output.truncated);
    assert_eq!(output.stdout.len() + output.stderr.len(), 1000);
    assert!(output.stdout.starts_with(b"first\nxxx") && output.stdout.ends_with(b"xxx\nlast\n"));
    assert_eq!(text(&output.stderr), "error\n");
}

#[tokio::test]
async fn files_and_background_processes_outlive_a_command() {
    let Some(fixture) = Fixture::new(small()) else {
        return;
    };
    let machine = fixture.machine().await;
    stdout(&machine, "mkfifo /tmp/in /tmp/out; echo 1 >state; (read word </tmp/in; echo got $word >/tmp/out) >/dev/null 2>&1 &").await;
    assert_eq!(
        stdout(&machine, "echo ping >/tmp/in; cat /tmp/out; cat state").await,
        "got ping\n1"
    );
    // Nobody else reaps the orphans; a process that is not reaped counts against the limit.
    for _ in 0..4 {
        stdout(&machine, "for i in 1 2 3 4 5 6 7 8 9 10; do (true &); done").await;
    }
    assert_eq!(stdout(&machine, "echo alive").await, "alive");
}

#[tokio::test]
async fn a_timeout_kills_the_process_group() {
    let Some(fixture) = Fixture::new(small()) else {
        return;
    };
    let machine = fixture.machine().await;
    let mut command =
        line("trap '' TERM INT HUP; sleep 1000 & echo started; while :; do sleep 1000; done");
    command.timeout = Duration::from_millis(500);
    let output = machine.exec(command).await.unwrap();
    assert_eq!(output.exit, Exit::TimedOut);
    assert_eq!(
        stdout(
            &machine,
            "grep -l '^sleep.1000' /proc/[0-9]*/cmdline || echo none"
        )
        .await,
        "none"
    );
}

#[tokio::test]
async fn files_are_written_and_read() {
    let Some(fixture) = Fixture::new(small()) else {
        return;
    };
    let machine = fixture.machine().await;
    machine
        .write_file("deep/er/file.txt", b"content")
        .await
        .unwrap();
    assert_eq!(
        stdout(&machine, "cat /work/deep/er/file.txt").await,
        "content"
    );
    machine
        .write_file("/work/deep/er/file.txt", b"new")
        .await
        .unwrap();
    assert_eq!(
        machine.read_file("deep/er/file.txt", 3).await.unwrap(),
        b"new"
    );
    let long = machine.read_file("deep/er/file.txt", 2).await;
    assert!(
        matches!(long, Err(SandboxError::QuotaExceeded(_))),
        "{long:?}"
    );
    let missing = machine.read_file("missing", 10).await;
    assert!(
        matches!(missing, Err(SandboxError::NotFound(_))),
        "{missing:?}"
    );
    for denied in ["/work", "/dev/zero", "nul\0"] {
        let denied = machine.read_file(denied, 10).await;
        assert!(matches!(denied, Err(SandboxError::Denied(_))), "{denied:?}");
    }
}

#[tokio::test]
async fn a_terminal_shows_what_a_program_draws() {
    let Some(fixture) = Fixture::new(small()) else {
        return;
    };
    let machine = fixture.machine().await;
    let argv = [
        "/bin/sh",
        "-c",
        "printf 'Name? '; read name; stty size; printf '\\033[2J\\033[3;5Hhello %s' $name; exec sleep 1000",
    ];
    let terminal = machine
        .open_terminal(argv.map(str::to_owned).to_vec(), 10, 40)
        .await
        .unwrap();
    let shows = async |what: &str| loop {
        let screen = terminal
            .wait(Duration::from_millis(20), Duration::from_secs(5))
            .await
            .unwrap();
        if screen.text.iter().any(|line| line.contains(what)) {
            break screen;
        }
        assert_eq!(screen.exited, None, "{screen:?}");
    };
    let screen = shows("Name?").await;
    assert_eq!((screen.rows, screen.cols, screen.cursor), (10, 40, (0, 6)));
    terminal.resize(12, 50).await.unwrap();
    terminal.send(b"you\r").await.unwrap();
    let screen = shows("hello you").await;
    assert_eq!((screen.rows, screen.cols), (12, 50));
    assert_eq!(screen.text[2], "    hello you");
    terminal.send(b"\x03").await.unwrap();
    let ended = loop {
        let screen = terminal
            .wait(Duration::from_secs(20), Duration::from_secs(20))
            .await
            .unwrap();
        if let Some(exit) = screen.exited {
            break exit;
        }
    };
    assert_eq!(ended, Exit::Signal(2));
    terminal.clone().close().await.unwrap();
    let closed = terminal.send(b"x").await;
    assert!(
        matches!(closed, Err(SandboxError::NotFound(_))),
        "{closed:?}"
    );
    assert_eq!(stdout(&machine, "echo alive").await, "alive");
}

#[tokio::test]
async fn a_snapshot_restores_the_work_directory_for_the_same_run() {
    let Some(fixture) = Fixture::new(small()) else {
        return;
    };
    let machine = fixture.machine().await;
    stdout(&machine, "mkdir a; echo text >a/file; ln -s file a/link; printf '#!/bin/sh\\necho ran\\n' >a/tool; chmod +x a/tool; echo no >/tmp/other; echo secret >a/closed; chmod 0 a/closed").await;
    let snapshot = machine.snapshot().await.unwrap();
    stdout(&machine, "echo changed >a/file").await;
    let other = Owner {
        run: "other".to_owned(),
        ..owner()
    };
    let denied = fixture.sandboxes.restore(other, &snapshot).await;
    assert!(
        matches!(denied, Err(SandboxError::NotFound(_))),
        "{denied:?}"
    );
    let restored = fixture.sandboxes.restore(owner(), &snapshot).await.unwrap();
    assert_eq!(
        stdout(&restored, "cat a/link; a/tool; ls /tmp; ls a").await,
        "text\nran\nfile\nlink\ntool"
    );
    assert_eq!(stdout(&machine, "cat a/link").await, "changed");
}

#[tokio::test]
async fn machines_that_cannot_be_started_say_why() {
    let Some(fixture) = Fixture::new(small()) else {
        return;
    };
    let unknown = Spec {
        profile: "unknown".to_owned(),
        ..spec()
    };
    let error = fixture
        .sandboxes
        .create(owner(), unknown)
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("[sandbox.profiles.unknown]"),
        "{error}"
    );
    let missing = SandboxProfile {
        read_only: vec!["/no/such/directory".into()],
        ..small()
    };
    let fixture = Fixture::new(missing).unwrap();
    let error = fixture.sandboxes.create(owner(), spec()).await.unwrap_err();
    assert!(
        matches!(&error, SandboxError::Unavailable(reason) if reason.contains("/no/such/directory")),
        "{error}"
    );
}

#[tokio::test]
async fn without_bubblewrap_only_starting_a_machine_fails() {
    let dir = tempfile::tempdir().unwrap();
    let config = clawhost_config::SandboxConfig {
        bwrap: "/no/such/bwrap".into(),
        ..Default::default()
    };
    let sandboxes = Sandboxes::new(config, supervisor(), dir.path()).unwrap();
    let spec = Spec {
        profile: "default".to_owned(),
        ..Spec::default()
    };
    let error = sandboxes.create(owner(), spec).await.unwrap_err();
    assert!(
        matches!(&error, SandboxError::Unavailable(reason) if reason.contains("apt-get install bubblewrap")),
        "{error}"
    );
}
