//! Chores of the repository, run as `cargo xtask CHORE`. No dependencies, so that it builds in a
//! second on any machine that has the toolchain.

mod author;
mod components;
mod guest;
mod manifest;
mod sha256;
mod sources;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const HELP: &str = "\
Chores of the repository.

  cargo xtask components           build the first-party components into plugins/artifacts
  cargo xtask components --check   build them again and fail on any difference
  cargo xtask guest-flags          print what plain cargo has to be told to build Rust plugins on
                                   this machine, for CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS

Guests need the standard library for wasm32-unknown-unknown. It comes from rustup where possible,
else it is built once from Debian's rust-src package into a private folder
(CLAWHOST_GUEST_CACHE, else ~/.cache/clawhost). Plugins in C need zig on the PATH; `.ci/author-tools`
installs it; they are built by the program in CLAWHOST_PROGRAM, else by `cargo run`. `cargo build` and `cargo test` never need either.
";

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    if std::env::var_os(guest::WRAPPING).is_some() {
        return guest::run_as_rustc_wrapper(args);
    }
    let args: Vec<String> = args
        .by_ref()
        .map(|arg| arg.to_string_lossy().into_owned())
        .collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["components"] => components::build(&root()),
        ["components", "--check"] => components::check(&root()),
        ["guest-flags"] => guest_flags(),
        [] | ["help" | "--help" | "-h"] => {
            println!("{HELP}");
            Ok(())
        }
        other => Err(format!("no chore {:?}\n\n{HELP}", other.join(" "))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("xtask: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the flags for plain cargo, after the target was added or built where it was missing.
fn guest_flags() -> Result<(), String> {
    let wanted = std::env::var(components::WANTED_STD).ok();
    println!("{}", guest::Toolchain::find(wanted.as_deref())?.flags());
    Ok(())
}

/// The repository: the folder above this crate.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}
