//! Compiled code is kept and found again, never run when it is not what was kept; and a compiler that
//! misbehaves is stopped, with its reason told.
//!
//! What the real compiler does in its own process is tested where there is one, beside the `clawhost`
//! command; here others take its place.

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may fail by panicking"
)]

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::common::{judge, options};
use clawhost_plugins::{
    CompileLimits, CompileResource, CompilerCommand, CompilerEnd, Grants, HostOptions, Limits,
    Plugin, PluginError, PluginHost, Profile, digest, embedded,
};
use tempfile::TempDir;

fn component() -> &'static [u8] {
    embedded("judge-minimal").unwrap()
}

fn keeping(dir: &Path) -> PluginHost {
    PluginHost::new(HostOptions {
        cache: Some(dir.to_owned()),
        ..options()
    })
    .unwrap()
}

fn load(host: &PluginHost, bytes: &[u8]) -> Plugin {
    host.load("it", bytes, &Grants::default(), Profile::Deterministic)
        .unwrap()
}

/// The files in a directory with this ending.
fn files(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|is| is == ending))
        .collect();
    found.sort();
    found
}

fn only(dir: &Path, ending: &str) -> PathBuf {
    let found = files(dir, ending);
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

/// The cache's files cannot be written to, and so they are replaced.
fn replace(path: &Path, bytes: &[u8]) {
    fs::remove_file(path).unwrap();
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o400)).unwrap();
}

#[tokio::test]
async fn code_from_the_cache_judges_as_code_that_was_compiled() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path().join("not").join("there").join("yet");
    let first = load(&keeping(&dir), component());
    let second = load(&keeping(&dir), component());
    assert_eq!((first.was_cached(), second.was_cached()), (false, true));
    assert_eq!(first.digest(), digest(component()));
    assert_eq!(first.digest(), second.digest());
    let (first, second) = (
        judge(&first, Limits::default()).await,
        judge(&second, Limits::default()).await,
    );
    assert!(first.outcome.is_ok(), "{first:?}");
    assert_eq!(first.outcome, second.outcome);
    assert_eq!(first.receipt.fuel, second.receipt.fuel);
    // Without a cache it is the same judge, too.
    let bare = load(&PluginHost::new(options()).unwrap(), component());
    let bare = judge(&bare, Limits::default()).await;
    assert_eq!(first.outcome, bare.outcome);
    // Nobody else may come near it.
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    assert_eq!(mode(&only(&dir, "cwasm")), 0o400);
    assert!(files(&dir, "new").is_empty());
}

#[test]
fn each_profile_and_each_component_has_code_of_its_own_and_looking_at_one_fills_the_cache() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path().join("compiled");
    let host = keeping(&dir);
    host.inspect(component()).unwrap();
    assert!(load(&host, component()).was_cached());
    let fast = || host.load("it", component(), &Grants::default(), Profile::Fast);
    assert!(!fast().unwrap().was_cached());
    assert!(fast().unwrap().was_cached());
    assert!(!load(&host, embedded("judge-next-state").unwrap()).was_cached());
    assert_eq!(files(&dir, "cwasm").len(), 3);
}

#[tokio::test]
async fn damaged_code_is_compiled_again_and_never_run() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path().join("compiled");
    let host = keeping(&dir);
    let sound = judge(&load(&host, component()), Limits::default()).await;
    let (code, sum) = (only(&dir, "cwasm"), only(&dir, "sum"));
    let (whole, summed) = (fs::read(&code).unwrap(), fs::read(&sum).unwrap());
    let mut damages: Vec<(String, PathBuf, Vec<u8>)> = vec![
        ("empty code".into(), code.clone(), Vec::new()),
        ("no sum".into(), sum.clone(), Vec::new()),
        ("strange sum".into(), sum.clone(), b"7 bytes".to_vec()),
        ("other code".into(), code.clone(), component().to_vec()),
        ("longer".into(), code.clone(), [&whole[..], b"\0"].concat()),
    ];
    for place in [1, 64, whole.len() / 2, whole.len() - 1] {
        let mut changed = whole.clone();
        changed[place] ^= 0x10;
        damages.push((format!("byte {place} changed"), code.clone(), changed));
        damages.push((
            format!("cut at {place}"),
            code.clone(),
            whole[..place].to_vec(),
        ));
    }
    for (what, path, bytes) in damages {
        replace(&path, &bytes);
        let again = load(&host, component());
        assert!(!again.was_cached(), "{what}");
        assert_eq!(
            judge(&again, Limits::default()).await.outcome,
            sound.outcome,
            "{what}"
        );
        assert_eq!(fs::read(&sum).unwrap(), summed, "{what} is repaired");
        assert!(load(&host, component()).was_cached(), "{what} is repaired");
    }
    // Whole, but made for the other engine: it says so itself.
    host.load("it", component(), &Grants::default(), Profile::Fast)
        .unwrap();
    for (ours, ending) in [(&code, "cwasm"), (&sum, "sum")] {
        let theirs = files(&dir, ending).into_iter().find(|path| path != ours);
        replace(ours, &fs::read(theirs.unwrap()).unwrap());
    }
    assert!(!load(&host, component()).was_cached());
    assert!(load(&host, component()).was_cached());
}

#[test]
fn a_directory_that_others_can_reach_is_not_used() {
    let root = TempDir::new().unwrap();
    let refused = |dir: &Path| {
        let host = keeping(dir);
        for _ in 0..2 {
            assert!(!load(&host, component()).was_cached(), "{}", dir.display());
        }
    };
    for mode in [0o755, 0o770, 0o701, 0o720] {
        let dir = root.path().join(format!("{mode:o}"));
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
        refused(&dir);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    }
    // A link, whatever it points to; a file; and a directory of somebody else, where that can be made.
    let good = root.path().join("good");
    assert!(!load(&keeping(&good), component()).was_cached());
    let link = root.path().join("link");
    symlink(&good, &link).unwrap();
    refused(&link);
    let file = root.path().join("file");
    fs::write(&file, "").unwrap();
    refused(&file);
    assert!(load(&keeping(&good), component()).was_cached());
    if std::os::unix::fs::chown(&good, Some(4711), None).is_ok() {
        refused(&good);
    }
}

#[test]
fn code_that_others_own_or_can_write_to_is_never_loaded() {
    let root = TempDir::new().unwrap();
    let dir = root.path().join("compiled");
    let host = keeping(&dir);
    load(&host, component());
    assert!(load(&host, component()).was_cached());
    let (code, sum) = (only(&dir, "cwasm"), only(&dir, "sum"));
    let whole = fs::read(&code).unwrap();
    let refused = |what: &str| {
        for _ in 0..2 {
            assert!(!load(&host, component()).was_cached(), "{what}");
        }
        // It is left for whoever has to look at it.
        assert!(code.exists() && sum.exists(), "{what}");
    };
    for file in [&code, &sum] {
        for mode in [0o644, 0o460, 0o606] {
            fs::set_permissions(file, Permissions::from_mode(mode)).unwrap();
            refused(&format!("{} with {mode:o}", file.display()));
        }
        fs::set_permissions(file, Permissions::from_mode(0o400)).unwrap();
        if std::os::unix::fs::chown(file, Some(4711), None).is_ok() {
            refused(&format!("{} of somebody else", file.display()));
            std::os::unix::fs::chown(file, Some(0), None).unwrap();
        }
        assert!(load(&host, component()).was_cached());
    }
    // What the refusal says to do: after it the code is made and kept again.
    fs::set_permissions(&code, Permissions::from_mode(0o666)).unwrap();
    refused("open to all");
    fs::remove_file(&code).unwrap();
    assert!(!load(&host, component()).was_cached());
    assert!(load(&host, component()).was_cached());
    assert_eq!(fs::read(&code).unwrap(), whole);
    // The directory was closed when the host opened it.
    fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
    refused("a directory that was opened to others");
}

#[test]
fn code_and_images_are_bounded_by_the_size_of_the_component() {
    // Sixteen modules, each with two bytes that are 16 MiB apart.
    let modules = "(core module (memory 256)
        (data (i32.const 0) \"a\") (data (i32.const 16777215) \"z\"))"
        .repeat(16);
    let sparse = wat::parse_str(format!("(component {modules})")).unwrap();
    assert!(sparse.len() < 2 << 10, "{}", sparse.len());
    let dir = TempDir::new().unwrap();
    let dir = dir.path().join("compiled");
    // It is no plugin of any kind, which is found out after it was compiled.
    let error = refused_by(&keeping(&dir), &sparse);
    assert!(matches!(error, PluginError::NoKind { .. }), "{error}");
    let kept = fs::metadata(only(&dir, "cwasm")).unwrap().len();
    assert!(kept < 1 << 20, "{kept} bytes of code");
    fs::remove_dir_all(&dir).unwrap();

    // Images below what is stored whole, in a number: a limit by the size of the component.
    let modules = "(core module (memory 256)
        (data (i32.const 0) \"a\") (data (i32.const 983040) \"z\"))"
        .repeat(16);
    let many = wat::parse_str(format!("(component {modules})")).unwrap();
    let limit = CompileLimits::default().code_ratio * many.len() as u64;
    assert!(limit < 8 << 20);
    let too_large = PluginError::CompilerLimit {
        resource: CompileResource::CodeRatio,
        limit: 8 << 20,
    };
    assert_eq!(refused_by(&keeping(&dir), &many), too_large);
    assert!(files(&dir, "cwasm").is_empty());
    let said = too_large.to_string();
    assert!(said.contains("plugin_host.compiling.code_ratio"), "{said}");
    // The compiler in its own process is stopped there, too.
    let flood = scripted("exec cat /dev/zero", limits());
    assert_eq!(refused_by(&flood, &many), too_large);
    // What there is stays far below it.
    for (name, bytes) in clawhost_plugins::EMBEDDED {
        let dir = TempDir::new().unwrap();
        let dir = dir.path().join("compiled");
        load(&keeping(&dir), bytes);
        let code = fs::metadata(only(&dir, "cwasm")).unwrap().len();
        let most = (8 << 20).max(16 * bytes.len() as u64);
        assert!(code * 2 < most, "{name}: {code} bytes of {most}");
    }
}

fn refused_by(host: &PluginHost, bytes: &[u8]) -> PluginError {
    host.load("it", bytes, &Grants::default(), Profile::default())
        .unwrap_err()
}

#[test]
fn a_component_that_is_long_in_the_making_holds_up_no_other() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    // The first component that is compiled waits for a file; another is refused at once.
    let script = format!(
        "if mkdir {first} 2>/dev/null; then while [ ! -e {go} ]; do sleep 0.01; done; fi; exit 3",
        first = at("first"),
        go = at("go"),
    );
    let host = scripted(&script, limits());
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| refused_by(&host, component()));
        while !dir.path().join("first").exists() {
            std::thread::yield_now();
        }
        let other = refused_by(&host, embedded("judge-next-state").unwrap());
        assert!(matches!(other, PluginError::CompilerDied { .. }), "{other}");
        assert!(!slow.is_finished());
        fs::write(at("go"), "").unwrap();
        assert!(matches!(
            slow.join().unwrap(),
            PluginError::CompilerDied { .. }
        ));
    });
}

#[test]
fn a_directory_is_held_and_not_looked_up_again() {
    let root = TempDir::new().unwrap();
    let dir = root.path().join("compiled");
    let host = keeping(&dir);
    load(&host, component());
    // Another directory in its place, with the same files that anybody might have changed.
    let aside = root.path().join("aside");
    fs::rename(&dir, &aside).unwrap();
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
    if cfg!(target_os = "linux") {
        assert!(load(&host, component()).was_cached());
        load(&host, embedded("judge-next-state").unwrap());
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        assert_eq!(files(&aside, "cwasm").len(), 2);
    }
}

#[test]
fn what_was_not_used_for_longest_makes_room() {
    let root = TempDir::new().unwrap();
    let [minimal, next_state] =
        ["judge-minimal", "judge-next-state"].map(|name| embedded(name).unwrap());
    let size = |bytes: &[u8]| {
        let dir = root.path().join(digest(bytes));
        load(&keeping(&dir), bytes);
        fs::metadata(only(&dir, "cwasm")).unwrap().len()
    };
    // Room for one of either, and not for both.
    let bound = size(minimal).max(size(next_state));
    let dir = root.path().join("compiled");
    let with = |cache_bytes| {
        PluginHost::new(HostOptions {
            cache: Some(dir.clone()),
            cache_bytes,
            ..options()
        })
        .unwrap()
    };
    let host = with(bound);
    for bytes in [minimal, next_state, minimal] {
        assert!(!load(&host, bytes).was_cached());
        assert!(load(&host, bytes).was_cached());
        assert_eq!(files(&dir, "sum").len(), 1);
        assert!(fs::metadata(only(&dir, "cwasm")).unwrap().len() <= bound);
    }
    // The older file stays when it was used later.
    let roomy = with(u64::MAX);
    assert!(!load(&roomy, next_state).was_cached());
    assert!(load(&roomy, minimal).was_cached());
    let fast = |host: &PluginHost| {
        let fast = host.load("it", minimal, &Grants::default(), Profile::Fast);
        fast.unwrap().was_cached()
    };
    let all_but_one = with(size(minimal) * 5 / 2);
    assert!(!fast(&all_but_one));
    assert!(load(&all_but_one, minimal).was_cached());
    assert!(fast(&all_but_one));
    assert!(!load(&with(u64::MAX), next_state).was_cached());
    // What cannot fit is not kept, and nothing makes room for it.
    let tight = with(size(minimal) - 1);
    assert!(load(&tight, next_state).was_cached());
    // Nothing is kept, and nothing is looked up.
    assert!(!load(&with(0), next_state).was_cached());
}

#[test]
fn the_same_component_can_be_loaded_from_all_sides_at_once() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path().join("compiled");
    let hosts = [keeping(&dir), keeping(&dir)];
    std::thread::scope(|scope| {
        let loads: Vec<_> = (0..8)
            .map(|i| {
                let host = &hosts[i % 2];
                scope.spawn(move || load(host, component()).digest().to_owned())
            })
            .collect();
        for load in loads {
            assert_eq!(load.join().unwrap(), digest(component()));
        }
    });
    assert!(load(&keeping(&dir), component()).was_cached());
    assert!(files(&dir, "new").is_empty());
}

/// A host whose compiler is this shell script.
fn scripted(script: &str, compiling: CompileLimits) -> PluginHost {
    PluginHost::new(HostOptions {
        compiler: Some(CompilerCommand::new("/bin/sh", ["-c", script])),
        compiling,
        ..options()
    })
    .unwrap()
}

fn refusal(host: &PluginHost) -> PluginError {
    host.load("it", component(), &Grants::default(), Profile::default())
        .unwrap_err()
}

fn limits() -> CompileLimits {
    CompileLimits::default()
}

#[test]
fn a_compiler_that_dies_is_told_by_its_signal_and_its_words() {
    for (script, end) in [
        ("kill -SEGV $$", CompilerEnd::Signal(11)),
        ("kill -KILL $$", CompilerEnd::Signal(9)),
        ("exit 3", CompilerEnd::Code(3)),
    ] {
        let script = format!("printf 'oh\\033[31m no\\n' >&2; {script}");
        let error = refusal(&scripted(&script, limits()));
        let died = PluginError::CompilerDied {
            ended: end,
            limits: limits(),
            said: "oh\\u{1b}[31m no".to_owned(),
        };
        assert_eq!(error, died);
        let told = error.to_string();
        assert!(told.contains(&end.to_string()), "{told}");
        assert!(told.contains("120 s of CPU time"), "{told}");
    }
    // A signal that is a limit is told as that limit; so is an allocation that failed.
    let cpu = refusal(&scripted("kill -XCPU $$", limits()));
    let limit = |resource, limit| PluginError::CompilerLimit { resource, limit };
    assert_eq!(cpu, limit(CompileResource::CpuSeconds, 120));
    assert!(
        cpu.to_string()
            .ends_with("raise plugin_host.compiling.cpu_seconds"),
        "{cpu}"
    );
    let memory = "echo memory allocation of 7 bytes failed >&2; kill -ABRT $$";
    assert_eq!(
        refusal(&scripted(memory, limits())),
        limit(CompileResource::MemoryBytes, 2 << 30)
    );
}

#[test]
fn a_compiler_that_does_not_end_is_ended_with_all_that_it_started() {
    let wall = CompileLimits {
        wall_ms: 30,
        ..limits()
    };
    let slow = PluginError::CompilerLimit {
        resource: CompileResource::WallMs,
        limit: 30,
    };
    // The second one leaves a child that holds the pipes open.
    for script in [
        "exec sleep 1000",
        "sleep 1000 & wait",
        "while :; do :; done",
    ] {
        assert_eq!(refusal(&scripted(script, wall)), slow, "{script}");
    }
    // One that has ended holds up nobody either.
    let left = scripted("sleep 1000 & exit 3", limits());
    assert!(matches!(refusal(&left), PluginError::CompilerDied { .. }));

    let small = CompileLimits {
        code_bytes: 1 << 20,
        ..limits()
    };
    let large = PluginError::CompilerLimit {
        resource: CompileResource::CodeBytes,
        limit: 1 << 20,
    };
    assert_eq!(refusal(&scripted("exec cat /dev/zero", small)), large);
    // As much as is allowed is not too much, and still no code.
    let exact = refusal(&scripted("exec head -c 1048576 /dev/zero", small));
    assert!(matches!(exact, PluginError::Compiler(_)), "{exact}");
    // What it says is read to its end and not kept.
    let wordy = "head -c 10000000 /dev/zero | tr '\\0' x >&2; exit 3";
    let PluginError::CompilerDied { said, .. } = refusal(&scripted(wordy, limits())) else {
        panic!("it did not die");
    };
    assert_eq!(said, "x".repeat(8 << 10));
}

#[test]
fn what_is_no_compiler_is_told_apart_from_a_bad_component() {
    for script in ["exit 0", "cat", "echo code"] {
        let error = refusal(&scripted(script, limits()));
        assert!(
            matches!(error, PluginError::Compiler(_)),
            "{script}: {error}"
        );
    }
    let missing = PluginHost::new(HostOptions {
        compiler: Some(CompilerCommand::new("/no/such/compiler", [""; 0])),
        ..options()
    });
    let error = refusal(&missing.unwrap());
    assert!(error.to_string().contains("/no/such/compiler"), "{error}");
}

#[test]
fn a_compiler_is_shown_the_order_and_the_component_and_nothing_of_this_process() {
    let dir = TempDir::new().unwrap();
    let seen = dir.path().join("seen");
    let script = format!(
        "{{ pwd; env | grep -v -e ^PWD= -e ^_= -e ^SHLVL= -e ^OLDPWD=; cat; }} > {}; exit 3",
        seen.display()
    );
    assert!(std::env::var_os("PATH").is_some());
    refusal(&scripted(&script, limits()));
    let seen = fs::read(seen).unwrap();
    let expected = [
        b"/\n{\"profile\":\"deterministic\",\"limits\":{\"cpu_seconds\":120,\"wall_ms\":240000,\
          \"memory_bytes\":2147483648,\"code_bytes\":268435456,\"code_ratio\":16}}\n",
        component(),
    ]
    .concat();
    assert!(
        seen == expected,
        "{:?}",
        String::from_utf8_lossy(&seen[..200])
    );
}
