//! The toolchain for WebAssembly guests.
//!
//! Guests need a standard library for `wasm32-unknown-unknown` that matches this rustc. There are two sources, tried in
//! this order: `rustup target add`, or Debian's `rust-src` package of exactly this version, unpacked and built in a
//! private directory. The second one installs nothing and does not modify the rustup toolchain.
//!
//! Builds are reproducible in any directory: a rustc wrapper (this program itself) remaps paths, because flags passed to
//! cargo would change symbol names.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

pub const TARGET: &str = "wasm32-unknown-unknown";
/// Environment variable with extra rustc arguments. If set, cargo started this process as its rustc wrapper.
pub const WRAPPER_ARGS: &str = "CLAWHOST_XTASK_RUSTC_ARGS";

/// Origins of the standard library, as recorded in `components.toml`.
const RUSTUP: &str = "rustup";
const DEBIAN: &str = "debian rust-src";
/// The Debian suite with current compilers.
const SUITE: &str = "trixie-backports";

/// A standard library for guests and its origin.
pub struct Toolchain {
    /// `rustc --version`.
    pub rustc: String,
    /// The origin of the standard library, as recorded in `components.toml`.
    pub std: String,
    /// Overlay sysroot; none if rustup has the target.
    sysroot: Option<PathBuf>,
    /// Directories with the linkers.
    linkers: Vec<PathBuf>,
}

impl Toolchain {
    /// Finds or builds a toolchain, with the standard library from `wanted` if possible, because only builds with the
    /// same standard library give the same bytes. The error says what to install.
    pub fn find(wanted: Option<&str>) -> Result<Toolchain, String> {
        let rustc = Rustc::query()?;
        let debian_first = wanted.is_some_and(|std| std.starts_with(DEBIAN));
        if !debian_first && rustc.ensure_target() {
            return Ok(rustc.toolchain(RUSTUP.to_owned(), None));
        }
        match from_debian(&rustc) {
            Ok((std, sysroot)) => Ok(rustc.toolchain(std, Some(sysroot))),
            Err(_) if debian_first && rustc.ensure_target() => {
                Ok(rustc.toolchain(RUSTUP.to_owned(), None))
            }
            Err(reason) => Err(format!(
                "no standard library for {TARGET}.\n  rustup: `rustup target add {TARGET}` failed\n  Debian: {reason}\n\
                 Install the target with rustup, or provide apt-get, dpkg and a Debian mirror."
            )),
        }
    }

    /// The rustc flags with which plain cargo finds the standard library, for
    /// `CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS`; empty if rustup has the target.
    pub fn flags(&self) -> String {
        self.sysroot.as_ref().map_or_else(String::new, |sysroot| {
            format!("--sysroot={}", sysroot.display())
        })
    }

    /// Runs a cargo build for the guest target in `root` with this target directory.
    pub fn cargo_build(&self, root: &Path, target_dir: &Path, args: &[&str]) -> Result<(), String> {
        let mut flags = vec!["-Clinker=wasm-component-ld".to_owned()];
        flags.extend(Some(self.flags()).filter(|flags| !flags.is_empty()));
        flags.push(remap(root, "/clawhost"));
        flags.push(remap(&cargo_home(), "/cargo"));
        let mut path: Vec<PathBuf> = self.linkers.clone();
        path.extend(std::env::split_paths(
            &std::env::var_os("PATH").unwrap_or_default(),
        ));
        let path = std::env::join_paths(path).map_err(|e| e.to_string())?;
        let mut cargo = wrapped_cargo(&flags)?;
        cargo
            .current_dir(root)
            .env("PATH", path)
            .args([
                "build",
                "--profile",
                "guest",
                "--target",
                TARGET,
                "--target-dir",
            ])
            .arg(target_dir)
            .args(args);
        run(cargo)
    }
}

/// Runs rustc, with the extra arguments if it compiles for the guest target.
pub fn run_as_rustc_wrapper(args: impl Iterator<Item = OsString>) -> ExitCode {
    let mut args = args;
    let Some(rustc) = args.next() else {
        return ExitCode::FAILURE;
    };
    let args: Vec<OsString> = args.collect();
    let mut command = Command::new(rustc);
    command.args(&args).env_remove(WRAPPER_ARGS);
    if args.iter().any(|arg| arg == TARGET) {
        let extra = std::env::var(WRAPPER_ARGS).unwrap_or_default();
        command.args(extra.split('\n').filter(|arg| !arg.is_empty()));
    }
    match command.status() {
        Ok(status) => ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)),
        Err(error) => {
            eprintln!("xtask: rustc: {error}");
            ExitCode::FAILURE
        }
    }
}

/// cargo with this program as rustc wrapper.
fn wrapped_cargo(flags: &[String]) -> Result<Command, String> {
    let me = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut cargo = Command::new(cargo());
    cargo
        .env("RUSTC_WRAPPER", me)
        .env(WRAPPER_ARGS, flags.join("\n"))
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS")
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("CARGO_BUILD_TARGET")
        .env("CARGO_INCREMENTAL", "0");
    Ok(cargo)
}

fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

fn remap(from: &Path, to: &str) -> String {
    format!("--remap-path-prefix={}={to}", from.display())
}

/// Version and paths of the installed rustc.
struct Rustc {
    version: String,
    commit: String,
    release: String,
    host: String,
    sysroot: PathBuf,
}

impl Rustc {
    fn query() -> Result<Rustc, String> {
        let verbose = output("rustc", &["-vV"])?;
        let field = |name: &str| {
            verbose
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .map(str::to_owned)
                .ok_or_else(|| format!("rustc -vV has no {name:?}"))
        };
        Ok(Rustc {
            version: verbose.lines().next().unwrap_or("").to_owned(),
            commit: field("commit-hash: ")?,
            release: field("release: ")?,
            host: field("host: ")?,
            sysroot: PathBuf::from(output("rustc", &["--print", "sysroot"])?.trim()),
        })
    }

    fn libraries(&self, sysroot: &Path, target: &str) -> PathBuf {
        sysroot.join("lib/rustlib").join(target)
    }

    /// Whether the target is installed, after trying to install it.
    fn ensure_target(&self) -> bool {
        self.has_target() || self.rustup_adds_target()
    }

    fn has_target(&self) -> bool {
        self.libraries(&self.sysroot, TARGET).join("lib").is_dir()
    }

    fn rustup_adds_target(&self) -> bool {
        let status = Command::new("rustup")
            .args(["target", "add", TARGET])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        status.is_ok_and(|status| status.success()) && self.has_target()
    }

    fn toolchain(self, std: String, sysroot: Option<PathBuf>) -> Toolchain {
        let bin = self.libraries(&self.sysroot, &self.host).join("bin");
        Toolchain {
            std,
            sysroot,
            linkers: vec![bin.join("gcc-ld"), bin],
            rustc: self.version,
        }
    }
}

/// The standard library from Debian's `rust-src` of this release, built once.
fn from_debian(rustc: &Rustc) -> Result<(String, PathBuf), String> {
    let cache = cache_dir()?.join(format!("guest-{}", rustc.release));
    let overlay = cache.join("sysroot");
    let stamp = cache.join("std");
    if let Ok(origin) = fs::read_to_string(&stamp) {
        return Ok((origin, overlay));
    }
    eprintln!(
        "xtask: preparing the guest toolchain in {}",
        cache.display()
    );
    fs::create_dir_all(&cache).map_err(|e| format!("{}: {e}", cache.display()))?;
    let apt = PrivateApt::set_up(&cache.join("apt"))?;
    let version = apt.version_of("rust-src", &rustc.release)?;
    let package = apt.download("rust-src", &version)?;
    let source = cache.join("source");
    let mut unpack = Command::new("dpkg");
    unpack.arg("-x").arg(&package).arg(&source);
    run(unpack)?;
    let library = source.join(format!("usr/src/rustc-{}/library", rustc.release));
    if !library.is_dir() {
        return Err(format!(
            "{} has no {}",
            package.display(),
            library.display()
        ));
    }
    let built = build_std(rustc, &cache.join("build"), &library)?;
    create_sysroot(rustc, &built, &overlay)?;
    let origin = format!("{DEBIAN} {version}");
    fs::write(&stamp, &origin).map_err(|e| e.to_string())?;
    Ok((origin, overlay))
}

/// Compiles std for the target and returns the directory of its libraries.
fn build_std(rustc: &Rustc, dir: &Path, library: &Path) -> Result<PathBuf, String> {
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))
    };
    fs::create_dir_all(dir.join("src")).map_err(|e| e.to_string())?;
    write(
        "Cargo.toml",
        "[package]\nname = \"carrier\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n",
    )?;
    write("src/lib.rs", "")?;
    let flags = [
        "-Cembed-bitcode=yes".to_owned(),
        remap(library, &format!("/rustc/{}/library", rustc.commit)),
        remap(dir, "/rust/carrier"),
        remap(&cargo_home(), "/cargo"),
    ];
    let mut cargo = wrapped_cargo(&flags)?;
    cargo
        .current_dir(dir)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("__CARGO_TESTS_ONLY_SRC_ROOT", library)
        .args([
            "build",
            "--release",
            "-Zbuild-std=std,panic_abort",
            "--target",
            TARGET,
        ]);
    run(cargo)?;
    Ok(dir.join("target").join(TARGET).join("release/deps"))
}

/// Creates a sysroot with the built libraries and those of the host.
fn create_sysroot(rustc: &Rustc, built: &Path, overlay: &Path) -> Result<(), String> {
    let show = |e: std::io::Error| format!("{}: {e}", overlay.display());
    let lib = rustc.libraries(overlay, TARGET).join("lib");
    fs::create_dir_all(&lib).map_err(show)?;
    for entry in fs::read_dir(built).map_err(show)? {
        let path = entry.map_err(show)?.path();
        let Some(name) = path.file_name() else {
            continue;
        };
        let is_own = name.to_string_lossy().starts_with("libcarrier-");
        if path.extension() == Some(OsStr::new("rlib")) && !is_own {
            fs::copy(&path, lib.join(name)).map_err(show)?;
        }
    }
    let host = rustc.libraries(overlay, &rustc.host);
    if !host.exists() {
        #[cfg(unix)]
        std::os::unix::fs::symlink(rustc.libraries(&rustc.sysroot, &rustc.host), &host)
            .map_err(show)?;
    }
    Ok(())
}

/// apt with private lists, cache and status. It installs nothing and does not change the system's state.
struct PrivateApt {
    dir: PathBuf,
}

impl PrivateApt {
    fn set_up(dir: &Path) -> Result<PrivateApt, String> {
        let show = |e: std::io::Error| format!("{}: {e}", dir.display());
        for folder in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(dir.join(folder)).map_err(show)?;
        }
        let keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
        let source = format!("deb [signed-by={keyring}] {} {SUITE} main\n", mirror());
        fs::write(dir.join("sources.list"), source).map_err(show)?;
        fs::write(dir.join("status"), "").map_err(show)?;
        let apt = PrivateApt {
            dir: dir.to_owned(),
        };
        run(apt.command("apt-get", &["-qq", "update"]))?;
        Ok(apt)
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        let path = |name: &str| self.dir.join(name).display().to_string();
        for option in [
            format!("Dir::Etc::sourcelist={}", path("sources.list")),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            format!("Dir::State::lists={}", path("lists")),
            format!("Dir::Cache={}", path("cache")),
            format!("Dir::State::status={}", path("status")),
            "APT::Sandbox::User=".to_owned(),
        ] {
            command.args(["-o", &option]);
        }
        command.args(args).current_dir(&self.dir);
        command
    }

    /// The newest package version of exactly this release.
    fn version_of(&self, package: &str, release: &str) -> Result<String, String> {
        let listed = self
            .command("apt-cache", &["madison", package])
            .output()
            .map_err(|e| format!("apt-cache: {e}"))?;
        String::from_utf8_lossy(&listed.stdout)
            .lines()
            .filter_map(|line| line.split('|').nth(1))
            .map(|version| version.trim().to_owned())
            .find(|version| version.starts_with(&format!("{release}+")))
            .ok_or_else(|| format!("{SUITE} has no {package} of release {release}"))
    }

    fn download(&self, package: &str, version: &str) -> Result<PathBuf, String> {
        let wanted = format!("{package}={version}");
        run(self.command("apt-get", &["-qq", "download", &wanted]))?;
        let start = format!("{package}_{}", version.replace(':', "%3a"));
        let entries = fs::read_dir(&self.dir).map_err(|e| e.to_string())?;
        entries
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .find(|path| {
                path.file_name()
                    .is_some_and(|name| name.to_string_lossy().starts_with(&start))
            })
            .ok_or_else(|| format!("apt-get did not download {start}"))
    }
}

/// The Debian mirror configured on this machine.
fn mirror() -> String {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(entries) = fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(entries.filter_map(|entry| entry.ok().map(|entry| entry.path())));
    }
    files.sort();
    files
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok())
        .flat_map(|text| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .map(|word| word.trim_end_matches('/').to_owned())
        .find(|word| word.starts_with("http") && word.ends_with("/debian"))
        .unwrap_or_else(|| "http://deb.debian.org/debian".to_owned())
}

fn cache_dir() -> Result<PathBuf, String> {
    if let Some(dir) = std::env::var_os("CLAWHOST_GUEST_CACHE") {
        return Ok(PathBuf::from(dir));
    }
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    base.map(|base| base.join("clawhost"))
        .ok_or_else(|| "neither CLAWHOST_GUEST_CACHE nor HOME is set".to_owned())
}

fn cargo_home() -> PathBuf {
    std::env::var_os("CARGO_HOME").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cargo"),
        PathBuf::from,
    )
}

pub fn output(program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(args)
        .output()
        .map_err(|e| format!("{program}: {e}"))?;
    if !output.status.success() {
        return Err(format!("{program} {} failed", args.join(" ")));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

pub fn run(mut command: Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().map_err(|e| format!("{program}: {e}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{program} failed with {status}"))
    }
}
