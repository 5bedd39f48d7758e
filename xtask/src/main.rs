//! Repository tasks, run as `cargo xtask TASK`. This crate has no dependencies, so that it builds in a second on any
//! machine with the toolchain.

mod author;
mod components;
mod guest;
mod kernels;
mod links;
mod manifest;
mod sha256;
mod sources;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const HELP: &str = "\
Repository tasks.

  cargo xtask components           build the first-party components into plugins/artifacts
  cargo xtask components --check   rebuild them and fail on any difference
  cargo xtask guest-flags          print the flags that plain cargo needs to build Rust plugins on
                                   this machine, for CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS
  cargo xtask kernels              compile the CUDA kernels into host/cuda/kernels/built
  cargo xtask kernels --check      fail if they are not those of their sources
  cargo xtask links                check the relative links of all Markdown files

Guests need the standard library for wasm32-unknown-unknown. It comes from rustup if possible;
otherwise it is built once from Debian's rust-src package in a private directory
(CLAWHOST_GUEST_CACHE, or ~/.cache/clawhost). C plugins need zig on the PATH; `.ci/author-tools`
installs it. They are built by the program in CLAWHOST_PROGRAM, or by `cargo run`.
The kernels need nvcc on the PATH.
`cargo build` and `cargo test` need none of them.
";

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    if std::env::var_os(guest::WRAPPER_ARGS).is_some() {
        return guest::run_as_rustc_wrapper(args);
    }
    let args: Vec<String> = args
        .by_ref()
        .map(|arg| arg.to_string_lossy().into_owned())
        .collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["components"] => components::build(&root()),
        ["components", "--check"] => components::check(&root()),
        ["guest-flags"] => guest_flags(),
        ["kernels"] => kernels::build(&root()),
        ["kernels", "--check"] => kernels::check(&root()),
        ["links"] => links::check(&root()),
        [] | ["help" | "--help" | "-h"] => {
            println!("{HELP}");
            Ok(())
        }
        other => Err(format!("unknown task {:?}\n\n{HELP}", other.join(" "))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("xtask: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the flags for plain cargo. Installs or builds the target's standard library if it is missing.
fn guest_flags() -> Result<(), String> {
    let wanted = std::env::var(components::STD_ORIGIN).ok();
    println!("{}", guest::Toolchain::find(wanted.as_deref())?.flags());
    Ok(())
}

/// The root of the repository, the parent of this crate's directory.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}
