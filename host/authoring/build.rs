//! Lists what is embedded: the contract, the SDKs and the templates, as a table of `include_str!`.
//!
//! A list by hand would miss the file that somebody adds to an SDK tomorrow.

#![allow(
    clippy::print_stdout,
    reason = "a build script stops by panicking and speaks on standard output"
)]

use std::path::{Path, PathBuf};
use std::{env, fs};

/// Folders under the workspace, and the endings of what is taken from them.
const SOURCES: [(&str, &[&str]); 5] = [
    ("wit", &["wit"]),
    ("sdk/rust/src", &["rs"]),
    ("sdk/python", &["py", "typed"]),
    ("sdk/js", &["js", "json"]),
    ("sdk/c", &["h", "c"]),
];

/// Everything in here is taken.
const TEMPLATES: &str = "sdk/templates";

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let root = here.join("../..");
    let mut files = Vec::new();
    for (folder, endings) in SOURCES {
        walk(&root, Path::new(folder), Some(endings), &mut files);
    }
    walk(&root, Path::new(TEMPLATES), None, &mut files);
    files.sort();
    let mut table = "pub(crate) static FILES: &[(&str, &str)] = &[\n".to_owned();
    for file in &files {
        let path = root.join(file);
        let path = path.canonicalize().expect("it was just listed");
        table.push_str(&format!("({file:?}, include_str!({path:?})),\n"));
    }
    table.push_str("];\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("files.rs"), table).expect("OUT_DIR can be written");
}

/// Adds the files below a folder, as paths from the root with `/` between.
fn walk(root: &Path, folder: &Path, endings: Option<&[&str]>, files: &mut Vec<String>) {
    println!("cargo::rerun-if-changed={}", root.join(folder).display());
    let entries = fs::read_dir(root.join(folder)).expect("the folder is part of the repository");
    for entry in entries {
        let entry = entry.expect("the folder can be read");
        let path = folder.join(entry.file_name());
        if entry.path().is_dir() {
            walk(root, &path, endings, files);
            continue;
        }
        let ending = path.extension().unwrap_or_default().to_string_lossy();
        if endings.is_none_or(|endings| endings.contains(&&*ending)) {
            let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
            files.push(parts.join("/"));
        }
    }
}
