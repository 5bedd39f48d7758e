//! Checks the relative links of the repository's Markdown files, without a network.
//!
//! - The file of each relative link exists, and so does the heading of its anchor.
//! - Pages of the guide link only to pages of the guide, and `SUMMARY.md` lists all of them.
//! - The code in the text of a link to a Rust file, as in ``[`Engine::active`](host/engine/src/lib.rs)``, is defined in
//!   that file.
//! - Paths in code spans that begin with a folder of the repository exist.
//!
//! It does not request addresses of other sites.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// The guide, which is built into a site of its own.
const GUIDE: &str = "docs/src";
/// Its table of contents.
const SUMMARY: &str = "docs/src/SUMMARY.md";
/// It describes earlier states of the repository.
const HISTORY: &str = "CHANGELOG.md";
/// Code spans that begin with one of these are paths.
const FOLDERS: [&str; 8] = [
    "host/", "lab/", "tests/", "benches/", "fuzz/", "xtask/", ".ci/", "docs/",
];

/// Checks all Markdown files below `root`.
///
/// # Errors
/// A list of everything that does not resolve.
pub fn check(root: &Path) -> Result<(), String> {
    let mut files = Vec::new();
    markdown_files(root, Path::new(""), &mut files)?;
    files.sort();
    let mut problems = Vec::new();
    let mut listed = BTreeSet::new();
    let mut links = 0;
    for file in &files {
        let text = read(&root.join(file))?;
        let document = Document::parse(&text);
        for link in &document.links {
            links += 1;
            match check_link(root, file, link) {
                Ok(target) if file == Path::new(SUMMARY) => drop(listed.insert(target)),
                Ok(_) => {}
                Err(reason) => problems.push(format!("{}: {reason}", file.display())),
            }
        }
        for path in document.paths() {
            if file != Path::new(HISTORY) && !root.join(path).exists() {
                problems.push(format!("{}: `{path}` does not exist", file.display()));
            }
        }
    }
    for file in files.iter().filter(|file| file.starts_with(GUIDE)) {
        if file != Path::new(SUMMARY) && !listed.contains(file) {
            problems.push(format!("{SUMMARY}: {} is not listed", file.display()));
        }
    }
    if problems.is_empty() {
        println!("{links} links in {} Markdown files resolve", files.len());
        return Ok(());
    }
    Err(format!(
        "{} problems\n{}",
        problems.len(),
        problems.join("\n")
    ))
}

/// The file that a link leads to, relative to the root, or why it leads nowhere.
fn check_link(root: &Path, file: &Path, link: &Link) -> Result<PathBuf, String> {
    let target = link.target.as_str();
    if target.contains("://") || target.starts_with("mailto:") {
        return Ok(PathBuf::new());
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = match path {
        "" => file.to_owned(),
        path => normalise(&file.parent().unwrap_or(Path::new("")).join(path)),
    };
    let full = root.join(&path);
    if path.starts_with("..") || !full.exists() {
        return Err(format!("({target}): {} does not exist", path.display()));
    }
    if file.starts_with(GUIDE) && !path.starts_with(GUIDE) {
        return Err(format!("({target}): the built guide does not contain it"));
    }
    if !anchor.is_empty() && !Document::parse(&read(&full)?).anchors.contains(anchor) {
        return Err(format!("({target}): no heading has this anchor"));
    }
    let name = link
        .text
        .strip_prefix('`')
        .and_then(|text| text.strip_suffix('`'));
    let is_symbol = |name: &&str| {
        name.chars()
            .all(|c| c.is_alphanumeric() || "_:".contains(c))
    };
    let rust = path.extension().is_some_and(|kind| kind == "rs");
    let name = name.filter(|name| rust && is_symbol(name));
    match name {
        Some(name) if !defines(&read(&full)?, name) => {
            Err(format!("({target}): `{name}` is not defined there"))
        }
        _ => Ok(path),
    }
}

/// Whether Rust source defines `name`, which may be `Type::item`; the type must occur in the source.
fn defines(source: &str, name: &str) -> bool {
    const KEYWORDS: [&str; 9] = [
        "fn", "struct", "enum", "trait", "type", "const", "static", "mod", "union",
    ];
    let (owner, item) = name.rsplit_once("::").unwrap_or(("", name));
    let code = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let words: Vec<&str> = code
        .flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'))
        .filter(|word| !word.is_empty())
        .collect();
    let defined = words
        .windows(2)
        .any(|pair| KEYWORDS.contains(&pair[0]) && pair[1] == item);
    defined && (owner.is_empty() || words.contains(&owner))
}

/// A link or an image.
#[derive(Debug, PartialEq, Eq)]
struct Link {
    text: String,
    target: String,
}

/// What a Markdown file refers to, and what can be referred to in it.
#[derive(Debug, Default)]
struct Document {
    links: Vec<Link>,
    anchors: BTreeSet<String>,
    code: Vec<String>,
}

impl Document {
    fn parse(text: &str) -> Self {
        let mut document = Self::default();
        let mut prose = String::new();
        let mut fence: Option<&str> = None;
        for line in text.lines() {
            let start = line.trim_start();
            match fence {
                Some(open) if start.starts_with(open) => fence = None,
                Some(_) => {}
                None if start.starts_with("```") => fence = Some("```"),
                None if start.starts_with("~~~") => fence = Some("~~~"),
                None => {
                    document.add_heading(line);
                    prose.push_str(line);
                    prose.push('\n');
                }
            }
        }
        prose
            .split("\n\n")
            .for_each(|block| document.add_block(block));
        document
    }

    /// Adds the anchor of a heading as mdBook and GitHub form it.
    fn add_heading(&mut self, line: &str) {
        let level = line.bytes().take_while(|byte| *byte == b'#').count();
        let Some(heading) = line.get(level..).and_then(|rest| rest.strip_prefix(' ')) else {
            return;
        };
        if !(1..=6).contains(&level) {
            return;
        }
        let slug: String = heading
            .trim()
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .flat_map(char::to_lowercase)
            .collect();
        let repeated = (1..).map(|number| format!("{slug}-{number}"));
        let mut names = std::iter::once(slug.clone()).chain(repeated);
        self.anchors
            .extend(names.find(|name| !self.anchors.contains(name)));
    }

    /// Adds the links and the code spans of a block; links inside code are text.
    fn add_block(&mut self, block: &str) {
        let bytes = block.as_bytes();
        let mut open = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            match bytes[at] {
                b'\\' => at += 1,
                b'`' => {
                    let ticks = bytes[at..].iter().take_while(|byte| **byte == b'`').count();
                    let content = at + ticks;
                    at = content - 1;
                    if let Some(length) = block[content..].find(&"`".repeat(ticks)) {
                        self.code
                            .push(block[content..content + length].trim().to_owned());
                        at = content + length + ticks - 1;
                    }
                }
                b'[' => open.push(at + 1),
                b']' => {
                    let text = open.pop().map(|start| &block[start..at]);
                    if let Some((text, target)) = text.zip(target(&block[at + 1..])) {
                        self.links.push(Link {
                            text: text.to_owned(),
                            target,
                        });
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// The code spans that are paths of files in the repository.
    fn paths(&self) -> impl Iterator<Item = &str> {
        let path = |code: &&str| {
            FOLDERS.iter().any(|folder| code.starts_with(folder))
                && !code.contains([' ', '*', '<', '{', '…', ':'])
        };
        self.code.iter().map(String::as_str).filter(path)
    }
}

/// The target of a link, from what follows its text: `(target)`, `(target "title")` or `: target` of a definition.
fn target(rest: &str) -> Option<String> {
    let inside = if let Some(inside) = rest.strip_prefix('(') {
        let mut depth = 1;
        let end = inside.find(|c| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            depth == 0
        })?;
        &inside[..end]
    } else {
        rest.strip_prefix(": ")?.lines().next()?
    };
    let target = inside.split_whitespace().next()?;
    // `[note]: text` is a definition only if the text can be an address.
    (rest.starts_with('(') || target.contains(['/', '.', '#'])).then(|| target.to_owned())
}

/// Resolves `.` and `..` without the file system.
fn normalise(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if normal.file_name().is_some() => drop(normal.pop()),
            part => normal.push(part),
        }
    }
    normal
}

/// Adds the Markdown files below a directory, which is relative to the root.
fn markdown_files(root: &Path, directory: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let failed = |error| format!("{}: {error}", directory.display());
    for entry in fs::read_dir(root.join(directory)).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = directory.join(entry.file_name());
        let name = entry.file_name();
        let hidden = name.to_string_lossy().starts_with('.');
        if entry.file_type().map_err(failed)?.is_dir() {
            if !hidden && name != "target" && name != "node_modules" {
                markdown_files(root, &path, files)?;
            }
        } else if path.extension().is_some_and(|kind| kind == "md") {
            files.push(path);
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_code_only() {
        let text = "# A `b` c\n[x](a.md \"t\") `[y](b.md)` ![p](c(1).svg)\n```\n[z](d.md)\n```\n[`f`](e.rs#g)\n[r]: h/i.md\n# A b c\n";
        let document = Document::parse(text);
        let targets: Vec<&str> = document
            .links
            .iter()
            .map(|link| link.target.as_str())
            .collect();
        assert_eq!(targets, ["a.md", "c(1).svg", "e.rs#g", "h/i.md"]);
        assert_eq!(document.links[2].text, "`f`");
        let anchors: Vec<&str> = document.anchors.iter().map(String::as_str).collect();
        assert_eq!(anchors, ["a-b-c", "a-b-c-1"]);
    }

    #[test]
    fn names_must_be_defined() {
        let source =
            "impl Engine {\n    // fn gone()\n    pub async fn active(&self) {}\n}\nstruct Block;";
        assert!(defines(source, "Engine::active"));
        assert!(defines(source, "Block"));
        assert!(!defines(source, "gone"));
        assert!(!defines(source, "Scheduler::active"));
        assert!(!defines(source, "activ"));
    }

    #[test]
    fn broken_links_are_named() {
        let root = std::env::temp_dir().join(format!("xtask-links-{}", std::process::id()));
        let guide = root.join(GUIDE);
        fs::create_dir_all(&guide).unwrap();
        fs::write(
            root.join("A.md"),
            "[a](B.md) [b](#no) [c](A.md#yes) `host/gone.rs`\n# Yes\n",
        )
        .unwrap();
        fs::write(guide.join("SUMMARY.md"), "[p](page.md)\n").unwrap();
        fs::write(guide.join("page.md"), "[up](../../A.md)\n").unwrap();
        fs::write(guide.join("lost.md"), "").unwrap();
        let problems = check(&root).unwrap_err();
        fs::remove_dir_all(&root).unwrap();
        let expected = [
            "5 problems",
            "A.md: (B.md): B.md does not exist",
            "A.md: (#no): no heading has this anchor",
            "A.md: `host/gone.rs` does not exist",
            "docs/src/page.md: (../../A.md): the built guide does not contain it",
            "docs/src/SUMMARY.md: docs/src/lost.md is not listed",
        ];
        assert_eq!(problems.lines().collect::<Vec<_>>(), expected);
    }
}
