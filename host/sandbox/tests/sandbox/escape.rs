//! What a hostile command tries. None of it reaches the host, and the machine goes on.

use std::io::ErrorKind;
use std::net::TcpListener;

use clawhost_sandbox::{Exit, Machine, SandboxError, Spec};

use crate::{Fixture, line, owner, run, small, spec, stdout, text};

/// Processes that the machine sees. The shell counts with a builtin, so it works when no process can be started.
async fn processes(machine: &Machine) -> u64 {
    stdout(machine, "set -- /proc/[0-9]*; echo $#")
        .await
        .parse()
        .unwrap()
}

#[tokio::test]
async fn a_fork_bomb_stays_within_the_limit() {
    let Some(fixture) = Fixture::new(small()) else {
        return;
    };
    let machine = fixture.machine().await;
    // The shell that is timed starts one process only, while there is room: it would end if it could not.
    let mut bomb = line("bomb() { bomb | bomb & }; bomb & exec sleep 1000");
    bomb.timeout = std::time::Duration::from_secs(2);
    assert_eq!(machine.exec(bomb).await.unwrap().exit, Exit::TimedOut);
    // All that it started has ended, so the next command has room.
    assert!(processes(&machine).await <= 3);
    let detached = line("i=0; while [ $i -lt 100 ]; do setsid sleep 1000 & i=$((i + 1)); done");
    machine.exec(detached).await.unwrap();
    // The first process, the shell that counts, and the supervisor count as well.
    let count = processes(&machine).await;
    assert!((10..=small().processes + 3).contains(&count), "{count}");
    assert_eq!(stdout(&machine, "exec bash -c 'ulimit -Hu'").await, "32");
    assert_ne!(
        run(&machine, "exec bash -c 'ulimit -u 1000'").await.exit,
        Exit::Code(0)
    );
    machine.release().await;
}

#[tokio::test]
async fn killing_everything_kills_neither_the_machine_nor_the_host() {
    let Some(fixture) = Fixture::new(small()) else {
        return;
    };
    let machine = fixture.machine().await;
    run(
        &machine,
        "kill -9 1; kill -TERM 1; kill -9 0 -1; kill -9 -1",
    )
    .await;
    assert_eq!(stdout(&machine, "echo alive").await, "alive");
    assert_eq!(
        stdout(&machine, "tr '\\0' ' ' </proc/1/cmdline").await,
        "sleep 2147483647"
    );
    assert!(processes(&machine).await <= 3);
}

#[tokio::test]
async fn memory_is_limited_per_process_and_in_total() {
    let Some(fixture) = Fixture::new(small()) else {
        return;
    };
    let machine = fixture.machine().await;
    let one = run(
        &machine,
        "head -c 300000000 /dev/zero | tail -c 300000000 >/dev/null",
    )
    .await;
    assert_ne!(one.exit, Exit::Code(0));
    let hold = "(head -c 60000000 /dev/zero; sleep 1000) | tail -c 60000000 & ";
    let all = run(&machine, &format!("{}wait", hold.repeat(5))).await;
    assert_eq!(all.exit, Exit::OutOfMemory);
    assert_eq!(stdout(&machine, "echo alive").await, "alive");
}

#[tokio::test]
async fn a_full_disk_is_the_machines_own() {
    let Some(fixture) = Fixture::new(small()) else {
        return;
    };
    let machine = fixture.machine().await;
    for dir in ["/work", "/tmp", "/home/agent", "/dev/shm"] {
        let filled = run(
            &machine,
            &format!(
                "for i in 1 2 3 4 5 6; do head -c 15000000 /dev/zero >{dir}/$i || exit 9; done"
            ),
        )
        .await;
        assert_eq!(filled.exit, Exit::Code(9), "{dir}");
    }
    let full = machine.write_file("more", &[0; 16 << 20]).await;
    assert!(
        matches!(full, Err(SandboxError::QuotaExceeded(_))),
        "{full:?}"
    );
    for dir in ["/", "/dev", "/usr", "/etc", "/home", "/bin"] {
        let written = run(&machine, &format!("echo x >{dir}/written")).await;
        assert_ne!(written.exit, Exit::Code(0), "{dir}");
    }
    assert_eq!(
        stdout(&machine, "rm /work/*; echo 1 >/work/a; cat /work/a").await,
        "1"
    );
}

#[tokio::test]
async fn there_is_no_network() {
    let Some(fixture) = Fixture::new(small()) else {
        return;
    };
    let machine = fixture.machine().await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let tried = run(
        &machine,
        &format!("bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}'"),
    )
    .await;
    assert_ne!(tried.exit, Exit::Code(0));
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(
        stdout(
            &machine,
            "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"
        )
        .await,
        "lo"
    );
}

#[tokio::test]
async fn the_host_is_not_visible() {
    let Some(fixture) = Fixture::new(small()) else {
        return;
    };
    let machine = fixture.machine().await;
    let secret = fixture.dir.path().join("secret");
    std::fs::write(&secret, "host secret").unwrap();
    let secret = secret.to_str().unwrap();
    for path in [
        secret,
        "/etc/shadow",
        "/root/.profile",
        "/var/log",
        "/sys/kernel",
        "/boot",
        "/run",
    ] {
        let seen = run(&machine, &format!("cat {path}; cat ../../../../..{path}; cat /proc/1/root{path}; cat /proc/self/root{path}")).await;
        assert_eq!(text(&seen.stdout), "", "{path}");
    }
    // The supervisor, bubblewrap and the host's processes are in another namespace.
    assert!(processes(&machine).await <= 3);
    for (attempt, what) in [
        ("hostname other", "the host name"),
        ("mount -t tmpfs none /work", "a mount"),
        ("mount -o remount,rw /", "a remount"),
        ("umount /work", "an unmount"),
        ("unshare --user true", "a user namespace"),
        ("chroot / true", "chroot"),
        ("echo 1 >/proc/sys/kernel/core_pattern", "a kernel setting"),
        ("echo b >/proc/sysrq-trigger", "sysrq"),
        ("mknod /work/null c 1 3", "a device"),
        ("renice -n -5 $$", "priority"),
        ("su -c true", "su"),
    ] {
        assert_ne!(run(&machine, attempt).await.exit, Exit::Code(0), "{what}");
    }
    assert_eq!(stdout(&machine, "grep -h ^Cap /proc/self/status /proc/1/status | grep -v 0000000000000000; grep NoNewPrivs /proc/self/status").await, "NoNewPrivs:\t1");
}

#[tokio::test]
async fn links_and_dots_stay_inside() {
    let Some(fixture) = Fixture::new(small()) else {
        return;
    };
    let machine = fixture.machine().await;
    let secret = fixture.dir.path().join("secret");
    std::fs::write(&secret, "host secret").unwrap();
    let path = secret.to_str().unwrap();
    stdout(&machine, &format!("ln -s {path} link; ln -s / root; ln -s ../../../.. up; ln -s /etc etc; ln -s /proc/self/fd/0 fd; ln -s loop loop; mkfifo pipe; ln -s /dev/zero zero")).await;
    for tried in [
        path,
        "link",
        &format!("root{path}"),
        &format!("up{path}"),
        &format!("../../../../../..{path}"),
        &format!("/proc/1/root{path}"),
        "fd",
        "/proc/self/environ",
        "loop",
        "pipe",
        "zero",
        "/dev/ptmx",
        "/proc/kmsg",
    ] {
        let read = machine.read_file(tried, 100).await;
        assert!(
            matches!(
                read,
                Err(SandboxError::NotFound(_) | SandboxError::Denied(_))
            ),
            "{tried}: {read:?}"
        );
    }
    // A file that is written where a link points is the machine's own.
    for tried in [path, "link", &format!("root{path}"), &format!("up{path}")] {
        machine.write_file(tried, b"x").await.unwrap();
        assert_eq!(std::fs::read(&secret).unwrap(), b"host secret", "{tried}");
    }
    for tried in ["fd", "loop", "pipe", "zero", "/dev/ptmx", "../file"] {
        let written = machine.write_file(tried, b"x").await;
        assert!(written.is_err(), "{tried}");
    }
    for tried in ["etc/passwd", "/usr/bin/sh", "/usr/new", "../etc/new"] {
        let written = machine.write_file(tried, b"x").await;
        assert!(
            matches!(written, Err(SandboxError::Denied(_))),
            "{tried}: {written:?}"
        );
    }
    assert_eq!(std::fs::read(&secret).unwrap(), b"host secret");
}

#[tokio::test]
async fn the_environment_has_only_what_was_given() {
    let Some(fixture) = Fixture::new(small()) else {
        return;
    };
    let given = Spec {
        env: vec![("GIVEN".to_owned(), "1".to_owned())],
        ..spec()
    };
    let machine = fixture.sandboxes.create(owner(), given).await.unwrap();
    assert!(std::env::vars_os().count() > 1);
    assert_eq!(
        stdout(&machine, "env | cut -d= -f1 | sort | tr '\\n' ' '").await,
        "GIVEN HOME LANG LOGNAME PATH PWD TERM USER"
    );
    assert_eq!(
        stdout(
            &machine,
            "tr '\\0' '\\n' </proc/1/environ | cut -d= -f1 | sort | tr '\\n' ' '"
        )
        .await,
        "PATH PWD"
    );
    // Descriptors: the standard streams, and the one that lists them.
    assert_eq!(
        stdout(
            &machine,
            "ls /proc/self/fd | tr '\\n' ' '; ls /proc/1/fd | tr '\\n' ' '"
        )
        .await,
        "0 1 2 3 0 1 2"
    );
}

#[tokio::test]
async fn a_grader_starts_from_files_only() {
    let Some(fixture) = Fixture::new(small()) else {
        return;
    };
    let machine = fixture.machine().await;
    stdout(&machine, "mkdir -p /tmp/tests; echo 'exit 0' >/tmp/tests/1.sh; echo 'alias false=true' >~/.profile; (while :; do echo 'exit 0' >/tmp/tests/1.sh; sleep 0.01; done) >/dev/null 2>&1 &").await;
    let snapshot = machine.snapshot().await.unwrap();
    let grader = fixture.sandboxes.restore(owner(), &snapshot).await.unwrap();
    assert_eq!(
        stdout(&grader, "ls -d /tmp/* ~/.profile 2>/dev/null; true").await,
        ""
    );
    grader
        .write_file("/tmp/tests/1.sh", b"exit 7")
        .await
        .unwrap();
    assert_eq!(run(&grader, "sh /tmp/tests/1.sh").await.exit, Exit::Code(7));
}
