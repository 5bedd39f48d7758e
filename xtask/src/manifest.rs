//! `components.toml`: digests of the checked-in artifacts and of their sources.

use std::fmt::Write as _;

/// One artifact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    pub sha256: String,
    pub sources: String,
}

/// All artifacts and the toolchain that built them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Manifest {
    pub rustc: String,
    pub std: String,
    /// Release of zig, which compiles plugins in C.
    pub zig: String,
    pub entries: Vec<Entry>,
}

impl Manifest {
    pub fn to_toml(&self) -> String {
        let mut out = String::from(
            "# Written by `cargo xtask components`; `cargo xtask components --check` compares.\n",
        );
        let _ = writeln!(
            out,
            "rustc = \"{}\"\nstd = \"{}\"\nzig = \"{}\"",
            self.rustc, self.std, self.zig
        );
        for entry in &self.entries {
            let _ = write!(
                out,
                "\n[{}]\nsha256 = \"{}\"\nsources = \"{}\"\n",
                entry.name, entry.sha256, entry.sources
            );
        }
        out
    }

    /// Parses the output of [`Manifest::to_toml`].
    pub fn from_toml(text: &str) -> Manifest {
        let mut manifest = Manifest::default();
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
                manifest.entries.push(Entry {
                    name: name.to_owned(),
                    sha256: String::new(),
                    sources: String::new(),
                });
            } else if let Some((key, value)) = line.split_once(" = ") {
                let value = value.trim_matches('"').to_owned();
                match (key, manifest.entries.last_mut()) {
                    ("rustc", None) => manifest.rustc = value,
                    ("std", None) => manifest.std = value,
                    ("zig", None) => manifest.zig = value,
                    ("sha256", Some(entry)) => entry.sha256 = value,
                    ("sources", Some(entry)) => entry.sources = value,
                    _ => {}
                }
            }
        }
        manifest
    }

    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_round_trips() {
        let manifest = Manifest {
            rustc: "rustc 1.95.0 (abc 2026-04-14)".into(),
            std: "rustup".into(),
            zig: "0.17.1".into(),
            entries: vec![Entry {
                name: "judge-x".into(),
                sha256: "ab".into(),
                sources: "cd".into(),
            }],
        };
        assert_eq!(Manifest::from_toml(&manifest.to_toml()), manifest);
    }
}
