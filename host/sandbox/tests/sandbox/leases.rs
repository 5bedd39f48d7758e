//! Machines end, and nothing of them is left, however their owner ends.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use clawhost_config::SandboxProfile;
use clawhost_sandbox::{SandboxError, Sandboxes, Spec};

use crate::{Fixture, config, line, owner, parent, run, small, spec, stdout, supervisor};

/// Names the directory of leases for the process that is killed.
const OWNER_DIR: &str = "CLAWHOST_TEST_OWNER_DIR";

/// Processes of the host whose environment contains the mark.
fn marked(mark: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap();
    processes
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let environment = std::fs::read(path.join("environ")).unwrap_or_default();
            environment
                .windows(mark.len())
                .any(|part| part == mark.as_bytes())
        })
        .map(|path| path.display().to_string())
        .collect()
}

fn leases_in(dir: &Path) -> Vec<serde_json::Value> {
    let hosts = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    hosts
        .filter(|path| path.is_dir())
        .flat_map(|path| std::fs::read_dir(path).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "lease")
        })
        .map(|path| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap())
        .collect()
}

fn is_running(pid: u32) -> bool {
    parent(pid).is_some()
}

fn marked_spec(mark: &str) -> Spec {
    let (name, value) = mark.split_once('=').unwrap();
    Spec {
        env: vec![(name.to_owned(), value.to_owned())],
        ..spec()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_machines_at_once_leave_nothing() {
    let Some(fixture) = Fixture::new(small()) else {
        return;
    };
    let mark = format!("MARK=many-{}", std::process::id());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let mut tasks = Vec::new();
    for number in 0..64 {
        let (sandboxes, spec) = (fixture.sandboxes.clone(), marked_spec(&mark));
        tasks.push(tokio::spawn(async move {
            let machine = sandboxes.create(owner(), spec).await.unwrap();
            run(
                &machine,
                "trap '' TERM; (while :; do sleep 1; done) >/dev/null 2>&1 &",
            )
            .await;
            let answer = stdout(&machine, &format!("echo {number} >file; cat file")).await;
            assert_eq!(answer, number.to_string());
            machine
        }));
    }
    let mut machines = Vec::new();
    for task in tasks {
        machines.push(task.await.unwrap());
    }
    let leases = fixture.sandboxes.leases();
    let supervisors: BTreeSet<u32> = leases.iter().map(|lease| lease.supervisor).collect();
    assert_eq!(supervisors.len(), 64);
    let launchers: BTreeSet<u32> = supervisors.iter().filter_map(|pid| parent(*pid)).collect();
    assert_eq!(launchers.len(), 1);
    assert_eq!(leases_in(fixture.dir.path()).len(), 64);
    assert!(!marked(&mark).is_empty());
    for machine in machines {
        machine.release().await;
    }
    assert!(fixture.sandboxes.leases().is_empty());
    assert!(leases_in(fixture.dir.path()).is_empty());
    assert!(!supervisors.into_iter().any(is_running));
    assert_eq!(marked(&mark), Vec::<String>::new());
    assert_eq!(
        std::fs::read_to_string("/proc/self/mounts").unwrap(),
        mounts
    );
}

#[tokio::test]
async fn a_dropped_machine_frees_its_slot() {
    let Some(mut config) = config(small()) else {
        return;
    };
    config.max_machines = 1;
    let dir = tempfile::tempdir().unwrap();
    let sandboxes = Sandboxes::new(config, supervisor(), dir.path()).unwrap();
    for _ in 0..3 {
        // Waits for the end of the machine before.
        let machine = sandboxes.create(owner(), spec()).await.unwrap();
        assert_eq!(stdout(&machine, "ls").await, "");
        assert_eq!(sandboxes.leases().len(), 1);
    }
}

#[tokio::test]
async fn machines_end_by_themselves() {
    let second = Duration::from_secs(1);
    for (profile, key) in [
        (
            SandboxProfile {
                ttl: second,
                ..small()
            },
            "ttl",
        ),
        (
            SandboxProfile {
                deadline: second,
                ..small()
            },
            "deadline",
        ),
    ] {
        let Some(fixture) = Fixture::new(profile) else {
            return;
        };
        let machine = fixture.machine().await;
        let supervisor = fixture.sandboxes.leases()[0].supervisor;
        while is_running(supervisor) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let ended = machine.exec(line("true")).await;
        assert!(
            matches!(&ended, Err(SandboxError::NotFound(reason)) if reason.contains(key)),
            "{ended:?}"
        );
    }
}

#[tokio::test]
async fn a_cancelled_operation_ends_the_machine() {
    let Some(fixture) = Fixture::new(small()) else {
        return;
    };
    let machine = fixture.machine().await;
    let sleeping = machine.exec(line("sleep 1000"));
    let cancelled = tokio::time::timeout(Duration::from_millis(50), sleeping).await;
    assert!(cancelled.is_err());
    let ended = machine.exec(line("true")).await;
    assert!(
        matches!(ended, Err(SandboxError::Unavailable(_))),
        "{ended:?}"
    );
    machine.release().await;
    assert!(fixture.sandboxes.leases().is_empty());
}

#[tokio::test]
async fn a_killed_launcher_is_replaced_and_its_machines_go_on() {
    let Some(fixture) = Fixture::new(small()) else {
        return;
    };
    let first = fixture.machine().await;
    let launcher = parent(fixture.sandboxes.leases()[0].supervisor).unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(launcher).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    while is_running(launcher) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let second = fixture.machine().await;
    assert_eq!(stdout(&first, "echo 1").await, "1");
    assert_eq!(stdout(&second, "echo 2").await, "2");
    let replacement = parent(fixture.sandboxes.leases()[1].supervisor).unwrap();
    assert_ne!(replacement, launcher);
    first.release().await;
    second.release().await;
    assert!(fixture.sandboxes.leases().is_empty());
}

/// The process that is killed, started by the test below.
#[tokio::test]
#[ignore = "started by the_machines_of_a_killed_host_end"]
async fn owner_of_machines() {
    let Some(dir) = std::env::var_os(OWNER_DIR) else {
        return;
    };
    let config = config(small()).unwrap();
    let sandboxes = Sandboxes::new(config, supervisor(), Path::new(&dir)).unwrap();
    let mark = format!("MARK={}", dir.display());
    let mut machines = Vec::new();
    for _ in 0..3 {
        let machine = sandboxes.create(owner(), marked_spec(&mark)).await.unwrap();
        run(
            &machine,
            "trap '' TERM; setsid sleep 100000 >/dev/null 2>&1 &",
        )
        .await;
        machines.push(machine);
    }
    println!("\nstarted");
    std::io::stdout().flush().unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn the_machines_of_a_killed_host_end() {
    let Some(config) = config(small()) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mark = format!("MARK={}", dir.path().display());
    let mut host = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "leases::owner_of_machines",
            "--ignored",
            "--nocapture",
        ])
        .env(OWNER_DIR, dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(host.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "started"));
    let supervisors: Vec<u32> = leases_in(dir.path())
        .iter()
        .map(|lease| u32::try_from(lease["supervisor"].as_u64().unwrap()).unwrap())
        .collect();
    assert_eq!(supervisors.len(), 3);
    let launcher = parent(supervisors[0]).unwrap();
    assert!(!marked(&mark).is_empty());
    host.kill().unwrap();
    host.wait().unwrap();
    let left = || is_running(launcher) || supervisors.iter().any(|pid| is_running(*pid));
    while left() || !marked(&mark).is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(leases_in(dir.path()).len(), 3);
    let _next = Sandboxes::new(config, supervisor(), dir.path()).unwrap();
    assert!(leases_in(dir.path()).is_empty());
}
