//! The compiled-code cache and the supervision of the compiler subprocess.
//!
//! The tests of the `clawhost` command cover the real compiler subprocess; here shell scripts replace it.

#![cfg(unix)]

use std::time::Duration;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::common::{default_limits, judge, options};
use clawhost_plugins::{
    CompileLimits, CompileResource, CompilerCommand, CompilerExit, Grants, HostOptions, Plugin,
    PluginError, PluginHost, PluginHostConfig, Profile, digest, embedded_component,
};
use tempfile::TempDir;

fn component() -> &'static [u8] {
    embedded_component("judge-minimal").unwrap()
}

fn host_with_cache(dir: &Path) -> PluginHost {
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

/// The files in a directory with this extension.
fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|is| is == extension))
        .collect();
    paths.sort();
    paths
}

fn only_file(dir: &Path, extension: &str) -> PathBuf {
    let paths = files(dir, extension);
    assert_eq!(paths.len(), 1, "{paths:?}");
    paths[0].clone()
}

/// Replaces a file of the cache, because these files are read-only.
fn replace(path: &Path, bytes: &[u8]) {
    fs::remove_file(path).unwrap();
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o400)).unwrap();
}

#[tokio::test]
async fn cached_code_gives_the_same_verdicts_as_fresh_code() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path().join("not").join("there").join("yet");
    let first = load(&host_with_cache(&dir), component());
    let second = load(&host_with_cache(&dir), component());
    assert_eq!((first.was_cached(), second.was_cached()), (false, true));
    assert_eq!(first.digest(), digest(component()));
    assert_eq!(first.digest(), second.digest());
    let (first, second) = (
        judge(&first, default_limits()).await,
        judge(&second, default_limits()).await,
    );
    assert!(first.outcome.is_ok(), "{first:?}");
    assert_eq!(first.outcome, second.outcome);
    assert_eq!(first.receipt.fuel, second.receipt.fuel);
    // The same without a cache.
    let bare = load(&PluginHost::new(options()).unwrap(), component());
    let bare = judge(&bare, default_limits()).await;
    assert_eq!(first.outcome, bare.outcome);
    // Only this user can access the cache.
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    assert_eq!(mode(&only_file(&dir, "cwasm")), 0o400);
    assert!(files(&dir, "new").is_empty());
}

#[test]
fn the_cache_has_one_entry_per_component_and_profile_and_inspection_fills_it() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path().join("compiled");
    let host = host_with_cache(&dir);
    host.inspect(component()).unwrap();
    assert!(load(&host, component()).was_cached());
    let fast = || host.load("it", component(), &Grants::default(), Profile::Fast);
    assert!(!fast().unwrap().was_cached());
    assert!(fast().unwrap().was_cached());
    assert!(!load(&host, embedded_component("judge-next-state").unwrap()).was_cached());
    assert_eq!(files(&dir, "cwasm").len(), 3);
}

#[tokio::test]
async fn damaged_cache_entries_are_compiled_again_and_never_run() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path().join("compiled");
    let host = host_with_cache(&dir);
    let expected = judge(&load(&host, component()), default_limits()).await;
    let (code, sum) = (only_file(&dir, "cwasm"), only_file(&dir, "sum"));
    let (whole, summed) = (fs::read(&code).unwrap(), fs::read(&sum).unwrap());
    let mut damages: Vec<(String, PathBuf, Vec<u8>)> = vec![
        ("empty code".into(), code.clone(), Vec::new()),
        ("no sum".into(), sum.clone(), Vec::new()),
        ("strange sum".into(), sum.clone(), b"7 bytes".to_vec()),
        ("other code".into(), code.clone(), component().to_vec()),
        ("longer".into(), code.clone(), [&whole[..], b"\0"].concat()),
    ];
    for position in [1, 64, whole.len() / 2, whole.len() - 1] {
        let mut changed = whole.clone();
        changed[position] ^= 0x10;
        damages.push((format!("byte {position} changed"), code.clone(), changed));
        damages.push((
            format!("cut at {position}"),
            code.clone(),
            whole[..position].to_vec(),
        ));
    }
    for (what, path, bytes) in damages {
        replace(&path, &bytes);
        let again = load(&host, component());
        assert!(!again.was_cached(), "{what}");
        assert_eq!(
            judge(&again, default_limits()).await.outcome,
            expected.outcome,
            "{what}"
        );
        assert_eq!(fs::read(&sum).unwrap(), summed, "{what} is repaired");
        assert!(load(&host, component()).was_cached(), "{what} is repaired");
    }
    // Intact code of the other engine: the engine rejects it.
    host.load("it", component(), &Grants::default(), Profile::Fast)
        .unwrap();
    for (own, extension) in [(&code, "cwasm"), (&sum, "sum")] {
        let other = files(&dir, extension).into_iter().find(|path| path != own);
        replace(own, &fs::read(other.unwrap()).unwrap());
    }
    assert!(!load(&host, component()).was_cached());
    assert!(load(&host, component()).was_cached());
}

#[test]
fn a_cache_directory_that_others_can_access_is_not_used() {
    let root = TempDir::new().unwrap();
    let assert_unused = |dir: &Path| {
        let host = host_with_cache(dir);
        for _ in 0..2 {
            assert!(!load(&host, component()).was_cached(), "{}", dir.display());
        }
    };
    for mode in [0o755, 0o770, 0o701, 0o720] {
        let dir = root.path().join(format!("{mode:o}"));
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
        assert_unused(&dir);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    }
    // A symbolic link, a file, and (as root) a directory of another user.
    let good = root.path().join("good");
    assert!(!load(&host_with_cache(&good), component()).was_cached());
    let link = root.path().join("link");
    symlink(&good, &link).unwrap();
    assert_unused(&link);
    let file = root.path().join("file");
    fs::write(&file, "").unwrap();
    assert_unused(&file);
    assert!(load(&host_with_cache(&good), component()).was_cached());
    if std::os::unix::fs::chown(&good, Some(4711), None).is_ok() {
        assert_unused(&good);
    }
}

#[test]
fn cache_files_that_others_own_or_can_access_are_never_loaded() {
    let root = TempDir::new().unwrap();
    let dir = root.path().join("compiled");
    let host = host_with_cache(&dir);
    load(&host, component());
    assert!(load(&host, component()).was_cached());
    let (code, sum) = (only_file(&dir, "cwasm"), only_file(&dir, "sum"));
    let whole = fs::read(&code).unwrap();
    let assert_unused = |what: &str| {
        for _ in 0..2 {
            assert!(!load(&host, component()).was_cached(), "{what}");
        }
        // It is kept for the operator to investigate.
        assert!(code.exists() && sum.exists(), "{what}");
    };
    for file in [&code, &sum] {
        for mode in [0o644, 0o460, 0o606] {
            fs::set_permissions(file, Permissions::from_mode(mode)).unwrap();
            assert_unused(&format!("{} with {mode:o}", file.display()));
        }
        fs::set_permissions(file, Permissions::from_mode(0o400)).unwrap();
        if std::os::unix::fs::chown(file, Some(4711), None).is_ok() {
            assert_unused(&format!("{} of another user", file.display()));
            std::os::unix::fs::chown(file, Some(0), None).unwrap();
        }
        assert!(load(&host, component()).was_cached());
    }
    // After deleting the file, as the message says, the code is compiled and cached again.
    fs::set_permissions(&code, Permissions::from_mode(0o666)).unwrap();
    assert_unused("accessible to all");
    fs::remove_file(&code).unwrap();
    assert!(!load(&host, component()).was_cached());
    assert!(load(&host, component()).was_cached());
    assert_eq!(fs::read(&code).unwrap(), whole);
    // The directory became accessible to others after the host opened it.
    fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
    assert_unused("an accessible directory");
}

#[test]
fn code_and_memory_images_are_limited_relative_to_the_component_size() {
    // Sixteen modules, each with two bytes 16 MiB apart.
    let modules = "(core module (memory 256)
        (data (i32.const 0) \"a\") (data (i32.const 16777215) \"z\"))"
        .repeat(16);
    let sparse = wat::parse_str(format!("(component {modules})")).unwrap();
    assert!(sparse.len() < 2 << 10, "{}", sparse.len());
    let dir = TempDir::new().unwrap();
    let dir = dir.path().join("compiled");
    // It exports no plugin interface, which is checked after compilation.
    let error = load_error_of(&host_with_cache(&dir), &sparse);
    assert!(matches!(error, PluginError::NoKind { .. }), "{error}");
    let code = fs::metadata(only_file(&dir, "cwasm")).unwrap().len();
    assert!(code < 1 << 20, "{code} bytes of code");
    fs::remove_dir_all(&dir).unwrap();

    // Many images that are small enough to be stored dense exceed the limit relative to the component's size.
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
    assert_eq!(load_error_of(&host_with_cache(&dir), &many), too_large);
    assert!(files(&dir, "cwasm").is_empty());
    let message = too_large.to_string();
    assert!(
        message.contains("plugins.host.compiling.code_ratio"),
        "{message}"
    );
    // The compiler subprocess is stopped at the same limit.
    let flood = scripted("exec cat /dev/zero", limits());
    assert_eq!(load_error_of(&flood, &many), too_large);
    // First-party components stay far below it.
    for (name, bytes) in clawhost_plugins::EMBEDDED_COMPONENTS {
        let dir = TempDir::new().unwrap();
        let dir = dir.path().join("compiled");
        load(&host_with_cache(&dir), bytes);
        let code = fs::metadata(only_file(&dir, "cwasm")).unwrap().len();
        let limit = (8 << 20).max(16 * bytes.len() as u64);
        assert!(code * 2 < limit, "{name}: {code} bytes of {limit}");
    }
}

fn load_error_of(host: &PluginHost, bytes: &[u8]) -> PluginError {
    host.load("it", bytes, &Grants::default(), Profile::default())
        .unwrap_err()
}

#[test]
fn a_slow_compilation_does_not_block_others() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    // The first compilation waits for a file; the second fails at once.
    let script = format!(
        "if mkdir {first} 2>/dev/null; then while [ ! -e {go} ]; do sleep 0.01; done; fi; exit 3",
        first = at("first"),
        go = at("go"),
    );
    let host = scripted(&script, limits());
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| load_error_of(&host, component()));
        while !dir.path().join("first").exists() {
            std::thread::yield_now();
        }
        let other = load_error_of(&host, embedded_component("judge-next-state").unwrap());
        assert!(
            matches!(other, PluginError::CompilerCrashed { .. }),
            "{other}"
        );
        assert!(!slow.is_finished());
        fs::write(at("go"), "").unwrap();
        assert!(matches!(
            slow.join().unwrap(),
            PluginError::CompilerCrashed { .. }
        ));
    });
}

#[test]
fn a_replaced_cache_directory_is_not_used() {
    let root = TempDir::new().unwrap();
    let dir = root.path().join("compiled");
    let host = host_with_cache(&dir);
    load(&host, component());
    // Replace it with a directory that anybody can write to.
    let aside = root.path().join("aside");
    fs::rename(&dir, &aside).unwrap();
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
    if cfg!(target_os = "linux") {
        assert!(load(&host, component()).was_cached());
        load(&host, embedded_component("judge-next-state").unwrap());
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        assert_eq!(files(&aside, "cwasm").len(), 2);
    }
}

#[test]
fn least_recently_used_entries_are_evicted() {
    let root = TempDir::new().unwrap();
    let [minimal, next_state] =
        ["judge-minimal", "judge-next-state"].map(|name| embedded_component(name).unwrap());
    let size = |bytes: &[u8]| {
        let dir = root.path().join(digest(bytes));
        load(&host_with_cache(&dir), bytes);
        fs::metadata(only_file(&dir, "cwasm")).unwrap().len()
    };
    // Enough for either entry, but not for both.
    let bound = size(minimal).max(size(next_state));
    let dir = root.path().join("compiled");
    let with = |cache_size| {
        PluginHost::new(HostOptions {
            cache: Some(dir.clone()),
            config: PluginHostConfig {
                cache_size,
                ..options().config
            },
            ..options()
        })
        .unwrap()
    };
    let host = with(bound);
    for bytes in [minimal, next_state, minimal] {
        assert!(!load(&host, bytes).was_cached());
        assert!(load(&host, bytes).was_cached());
        assert_eq!(files(&dir, "sum").len(), 1);
        assert!(fs::metadata(only_file(&dir, "cwasm")).unwrap().len() <= bound);
    }
    // The older entry stays because it was used more recently.
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
    // An entry larger than the limit is not stored and evicts nothing.
    let tight = with(size(minimal) - 1);
    assert!(load(&tight, next_state).was_cached());
    // A limit of 0 disables the cache.
    assert!(!load(&with(0), next_state).was_cached());
}

#[test]
fn concurrent_loads_of_one_component_share_the_cache() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path().join("compiled");
    let hosts = [host_with_cache(&dir), host_with_cache(&dir)];
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
    assert!(load(&host_with_cache(&dir), component()).was_cached());
    assert!(files(&dir, "new").is_empty());
}

/// A host whose compiler is this shell script.
fn scripted(script: &str, compiling: CompileLimits) -> PluginHost {
    PluginHost::new(HostOptions {
        compiler: Some(CompilerCommand::new("/bin/sh", ["-c", script])),
        config: PluginHostConfig {
            compiling,
            ..options().config
        },
        ..options()
    })
    .unwrap()
}

fn load_error(host: &PluginHost) -> PluginError {
    host.load("it", component(), &Grants::default(), Profile::default())
        .unwrap_err()
}

fn limits() -> CompileLimits {
    CompileLimits::default()
}

#[test]
fn a_crashed_compiler_is_reported_with_exit_status_and_stderr() {
    for (script, exit) in [
        ("kill -SEGV $$", CompilerExit::Signal(11)),
        ("kill -KILL $$", CompilerExit::Signal(9)),
        ("exit 3", CompilerExit::Code(3)),
    ] {
        let script = format!("printf 'oh\\033[31m no\\n' >&2; {script}");
        let error = load_error(&scripted(&script, limits()));
        let crashed = PluginError::CompilerCrashed {
            exit,
            limits: limits(),
            stderr: "oh\\u{1b}[31m no".to_owned(),
        };
        assert_eq!(error, crashed);
        let message = error.to_string();
        assert!(message.contains(&exit.to_string()), "{message}");
        assert!(message.contains("2m of CPU time"), "{message}");
    }
    // SIGXCPU and a failed allocation are reported as the exceeded limit.
    let cpu = load_error(&scripted("kill -XCPU $$", limits()));
    let limit = |resource, limit| PluginError::CompilerLimit { resource, limit };
    assert_eq!(cpu, limit(CompileResource::CpuSeconds, 120));
    assert!(
        cpu.to_string()
            .ends_with("raise plugins.host.compiling.cpu_time"),
        "{cpu}"
    );
    let memory = "echo memory allocation of 7 bytes failed >&2; kill -ABRT $$";
    assert_eq!(
        load_error(&scripted(memory, limits())),
        limit(CompileResource::MemoryBytes, 2 << 30)
    );
}

#[test]
fn a_compiler_that_exceeds_a_limit_is_killed_with_its_children() {
    let wall = CompileLimits {
        wall_time: Duration::from_millis(30),
        ..limits()
    };
    let slow = PluginError::CompilerLimit {
        resource: CompileResource::WallMs,
        limit: 30,
    };
    // The second script starts a child that holds the pipes open.
    for script in [
        "exec sleep 1000",
        "sleep 1000 & wait",
        "while :; do :; done",
    ] {
        assert_eq!(load_error(&scripted(script, wall)), slow, "{script}");
    }
    // A child that outlives the compiler does not block either.
    let orphan = scripted("sleep 1000 & exit 3", limits());
    assert!(matches!(
        load_error(&orphan),
        PluginError::CompilerCrashed { .. }
    ));

    let small = CompileLimits {
        code_size: 1 << 20,
        ..limits()
    };
    let large = PluginError::CompilerLimit {
        resource: CompileResource::CodeBytes,
        limit: 1 << 20,
    };
    assert_eq!(load_error(&scripted("exec cat /dev/zero", small)), large);
    // Output of exactly the limit is not too much, but not compiled code.
    let exact = load_error(&scripted("exec head -c 1048576 /dev/zero", small));
    assert!(matches!(exact, PluginError::Compiler(_)), "{exact}");
    // Standard error is read to its end and truncated.
    let wordy = "head -c 10000000 /dev/zero | tr '\\0' x >&2; exit 3";
    let PluginError::CompilerCrashed { stderr, .. } = load_error(&scripted(wordy, limits())) else {
        panic!("the compiler did not crash");
    };
    assert_eq!(stderr, "x".repeat(8 << 10));
}

#[test]
fn a_broken_compiler_command_is_distinguished_from_an_invalid_component() {
    for script in ["exit 0", "cat", "echo code"] {
        let error = load_error(&scripted(script, limits()));
        assert!(
            matches!(error, PluginError::Compiler(_)),
            "{script}: {error}"
        );
    }
    let missing = PluginHost::new(HostOptions {
        compiler: Some(CompilerCommand::new("/no/such/compiler", [""; 0])),
        ..options()
    });
    let error = load_error(&missing.unwrap());
    assert!(error.to_string().contains("/no/such/compiler"), "{error}");
}

#[test]
fn the_compiler_gets_the_request_and_the_component_but_no_environment() {
    let dir = TempDir::new().unwrap();
    let seen = dir.path().join("seen");
    let script = format!(
        "{{ pwd; env | grep -v -e ^PWD= -e ^_= -e ^SHLVL= -e ^OLDPWD=; cat; }} > {}; exit 3",
        seen.display()
    );
    assert!(std::env::var_os("PATH").is_some());
    load_error(&scripted(&script, limits()));
    let seen = fs::read(seen).unwrap();
    let expected = [
        b"/\n{\"profile\":\"deterministic\",\"limits\":{\"cpu_time\":\"2m\",\"wall_time\":\"4m\",\
          \"memory\":\"2GiB\",\"code_size\":\"256MiB\",\"code_ratio\":16}}\n",
        component(),
    ]
    .concat();
    assert!(
        seen == expected,
        "{:?}",
        String::from_utf8_lossy(&seen[..200])
    );
}
