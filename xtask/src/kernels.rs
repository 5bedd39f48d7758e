//! Compiles the CUDA kernels ahead of time and verifies the checked-in result.
//!
//! Building the program needs no CUDA: it contains `host/cuda/kernels/built/kernels.fatbin`. The digest of the sources
//! beside it detects an outdated one without nvcc.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::guest::{output, run};
use crate::sha256;
use crate::sources;

/// Machine code for compute capabilities 8.0 and 9.0, and PTX for later ones.
const FLAGS: &[&str] = &[
    "-std=c++17",
    "-O3",
    "--fatbin",
    "-gencode",
    "arch=compute_80,code=sm_80",
    "-gencode",
    "arch=compute_90,code=sm_90",
    "-gencode",
    "arch=compute_90,code=compute_90",
    "-compress-mode=size",
];

/// Builds the kernels into the repository.
pub fn build(root: &Path) -> Result<(), String> {
    let nvcc = nvcc_version()?;
    let bytes = compile(root)?;
    let dir = built_dir(root);
    fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    write(&dir.join("kernels.fatbin"), &bytes)?;
    let record = record(&nvcc, &digest(root)?, &sha256::hex(&bytes));
    write(&dir.join("kernels.toml"), record.as_bytes())?;
    println!("kernels.fatbin  {} bytes", bytes.len());
    Ok(())
}

/// Fails when the checked-in kernels are not those of their sources. Without the compiler that built them only the
/// digests are compared.
pub fn check(root: &Path) -> Result<(), String> {
    let dir = built_dir(root);
    let recorded = fs::read_to_string(dir.join("kernels.toml"))
        .map_err(|e| format!("kernels.toml: {e}; run `cargo xtask kernels`"))?;
    let bytes = sources::read(&dir.join("kernels.fatbin"))?;
    let value = |key: &str| {
        let line = recorded.lines().find_map(|line| line.strip_prefix(key));
        line.map(|line| line.trim_start_matches(" = ").trim_matches('"').to_owned())
    };
    if value("sources") != Some(digest(root)?) {
        return Err(
            "kernels.fatbin is out of date: its sources changed; run `cargo xtask kernels`"
                .to_owned(),
        );
    }
    if value("sha256") != Some(sha256::hex(&bytes)) {
        return Err("kernels.fatbin is not the one that kernels.toml records".to_owned());
    }
    let found = nvcc_version();
    if found.as_ref().ok() != value("nvcc").as_ref() {
        let reason = found.map_or_else(|e| e, |version| format!("this machine has {version}"));
        eprintln!("xtask: the kernels were not rebuilt and compared: {reason}");
        return Ok(());
    }
    if compile(root)? != bytes {
        return Err(
            "kernels.fatbin differs from its sources; run `cargo xtask kernels`".to_owned(),
        );
    }
    println!("kernels.fatbin  ok");
    Ok(())
}

fn record(nvcc: &str, sources: &str, sha256: &str) -> String {
    format!("nvcc = \"{nvcc}\"\nsources = \"{sources}\"\nsha256 = \"{sha256}\"\n")
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    fs::write(path, bytes).map_err(|e| format!("{}: {e}", path.display()))
}

fn built_dir(root: &Path) -> PathBuf {
    root.join("host/cuda/kernels/built")
}

/// The release of nvcc on the PATH.
fn nvcc_version() -> Result<String, String> {
    let text = output("nvcc", &["--version"]).map_err(|_| {
        "nvcc is not on the PATH; `pip download` nvidia-cuda-nvcc, nvidia-nvvm, nvidia-cuda-crt, nvidia-cuda-runtime and \
         nvidia-cuda-cccl, and unpack them into one folder"
            .to_owned()
    })?;
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    Ok(last.unwrap_or("unknown").trim().to_owned())
}

fn compile(root: &Path) -> Result<Vec<u8>, String> {
    let out = root.join("target/kernels.fatbin");
    fs::create_dir_all(root.join("target")).map_err(|e| format!("target: {e}"))?;
    let mut command = Command::new("nvcc");
    // A relative path, so that the result does not depend on where the repository is.
    command
        .current_dir(root.join("host/cuda/kernels"))
        .args(FLAGS)
        .args(["kernels.cu", "-o"])
        .arg(&out);
    run(command)?;
    sources::read(&out)
}

/// The digest of flags and sources.
fn digest(root: &Path) -> Result<String, String> {
    let dir = root.join("host/cuda/kernels");
    let entries = fs::read_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| format!("{}: {e}", dir.display()))?.path();
        if path
            .extension()
            .is_some_and(|end| end == "cu" || end == "cuh")
        {
            files.push(path);
        }
    }
    files.sort();
    let mut all = FLAGS.join(" ").into_bytes();
    for file in files {
        let name = file
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let text = sources::read(&file)?;
        // Ignore line endings, which differ between checkouts.
        let text: Vec<u8> = text.into_iter().filter(|byte| *byte != b'\r').collect();
        all.extend(format!("\n{name} {}", sha256::hex(&text)).into_bytes());
    }
    Ok(sha256::hex(&all))
}
