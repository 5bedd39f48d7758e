//! Folders of terminal-bench and SETA: `task.yaml` with the instruction, a Dockerfile, and `tests/`.
//!
//! A machine has no image. Its work directory takes the place of the image's: paths below it are written as paths below
//! `/work` in the instruction, the files and the tests. What the Dockerfile copies becomes `files`, what it runs becomes
//! `setup`, as does a `setup.sh`; what it installs must be on the host. `tests/` becomes `test_files`, and each test function
//! a test; without Python tests `run-tests.sh` is the only one. Weights of tests are not used.

use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::dockerfile::{self, Step};
use super::shell::quote;
use super::{Found, ImportError, ImportOptions, python_tests};

/// Work directory of an image that sets none.
const DEFAULT_WORKDIR: &str = "/app";
/// Where images of terminal-bench have the tests.
const TESTS: &str = "/tests";
/// What of a folder is not for the policy.
const PRIVATE: [&str; 8] = [
    "task.yaml",
    "tests",
    "run-tests.sh",
    "solution.sh",
    "solution.yaml",
    "Dockerfile",
    "docker-compose.yaml",
    "weights.json",
];
/// Largest file that becomes part of a task.
const MAX_FILE: u64 = 1 << 20;
/// Seconds of all tests together, as in the environment.
const MAX_TIMEOUT: f64 = 240.0;
const DEFAULT_TIMEOUT: f64 = 180.0;

/// What is read of `task.yaml`.
#[derive(Deserialize)]
struct TaskFile {
    instruction: String,
    #[serde(default)]
    category: Option<String>,
    #[serde(default)]
    max_test_timeout_sec: Option<f64>,
}

/// Converts a folder with a `task.yaml`, or all such folders in it.
pub(super) fn read(path: &Path, options: &ImportOptions) -> Result<Vec<Found>, ImportError> {
    let convert = |folder: PathBuf| Found {
        place: folder.display().to_string(),
        task: task(&folder, options),
    };
    if path.join("task.yaml").is_file() {
        return Ok(vec![convert(path.to_owned())]);
    }
    let unreadable = |error| ImportError::new(path.display(), format!("cannot be read: {error}"));
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(path).map_err(unreadable)? {
        let folder = entry.map_err(unreadable)?.path();
        if folder.join("task.yaml").is_file() {
            folders.push(folder);
        }
    }
    if folders.is_empty() {
        let reason = "has no task.yaml, and no folder with one";
        return Err(ImportError::new(path.display(), reason));
    }
    folders.sort();
    Ok(folders.into_iter().map(convert).collect())
}

fn task(folder: &Path, options: &ImportOptions) -> Result<Map<String, Value>, String> {
    let absolute = std::path::absolute(folder).map_err(|error| error.to_string())?;
    let id = absolute.file_name().and_then(|name| name.to_str());
    let id = id.ok_or("the name of the folder is no UTF-8")?;
    let file: TaskFile = serde_saphyr::from_str(&read_text(&folder.join("task.yaml"))?)
        .map_err(|error| format!("task.yaml: {error}"))?;
    let mut image = Image::new(folder);
    let dockerfile = folder.join("Dockerfile");
    if dockerfile.is_file() {
        for step in dockerfile::parse(&read_text(&dockerfile)?)? {
            image.follow(step, options)?;
        }
    }
    if folder.join("setup.sh").is_file() {
        image.run(&read_text(&folder.join("setup.sh"))?, options)?;
    }
    let mut test_files = Vec::new();
    if folder.join("tests").is_dir() {
        collect(&folder.join("tests"), "tests", &mut test_files)?;
    }
    for (_, text) in &mut test_files {
        *text = image.rewrite(text);
    }
    let mut commands = Vec::new();
    for (path, text) in test_files.iter().filter(|(path, _)| path.ends_with(".py")) {
        commands.extend(python_tests::commands(path, text));
    }
    if commands.is_empty() {
        let script = folder.join("run-tests.sh");
        if !script.is_file() {
            return Err("has neither a test function in tests/*.py nor a run-tests.sh".to_owned());
        }
        let text = image.rewrite(&read_text(&script)?);
        if let Some(program) = dockerfile::installer(&text) {
            return Err(format!(
                "run-tests.sh uses `{program}`, but a machine has no network"
            ));
        }
        test_files.push(("tests/run-tests.sh".to_owned(), text));
        commands.push("TEST_DIR=tests bash tests/run-tests.sh".to_owned());
    }
    let seconds = file.max_test_timeout_sec.unwrap_or(DEFAULT_TIMEOUT);
    if !(seconds > 0.0 && seconds.is_finite()) {
        return Err(format!(
            "task.yaml: `max_test_timeout_sec` is {seconds}, not above 0"
        ));
    }
    let timeout = (seconds.min(MAX_TIMEOUT) / commands.len() as f64 * 10.0).floor() / 10.0;
    let tests: Vec<Value> = commands
        .into_iter()
        .map(|command| json!({"command": command, "timeout": timeout.max(0.1)}))
        .collect();
    let mut task = Map::new();
    let mut insert = |name: &str, value: Value| task.insert(name.to_owned(), value);
    insert("id", id.into());
    insert("instruction", image.rewrite(file.instruction.trim()).into());
    if let Some(category) = file.category {
        insert("family", category.into());
    }
    insert("files", object(&image.files));
    insert("setup", json!(image.setup));
    insert("test_files", object(&test_files));
    insert("tests", tests.into());
    Ok(task)
}

/// What a machine is prepared with instead of the image.
struct Image<'a> {
    folder: &'a Path,
    /// The work directory of the image, whose paths become those of `/work`.
    root: Option<String>,
    /// The current directory, below `/work`; empty for `/work` itself.
    current: String,
    env: String,
    files: Vec<(String, String)>,
    setup: Vec<String>,
}

impl<'a> Image<'a> {
    fn new(folder: &'a Path) -> Self {
        Self {
            folder,
            root: None,
            current: String::new(),
            env: String::new(),
            files: Vec::new(),
            setup: Vec::new(),
        }
    }

    fn root(&self) -> &str {
        self.root.as_deref().unwrap_or(DEFAULT_WORKDIR)
    }

    fn follow(&mut self, step: Step, options: &ImportOptions) -> Result<(), String> {
        match step {
            Step::WorkDir(path) if self.root.is_none() && path.starts_with('/') => {
                let root = path.trim_end_matches('/');
                if root.is_empty() {
                    return Err(
                        "the Dockerfile's WORKDIR is /, which a machine cannot write".to_owned(),
                    );
                }
                self.root = Some(root.to_owned());
            }
            Step::WorkDir(path) => self.current = self.inside(&path)?,
            Step::Env(name, value) => {
                self.env += &format!("export {name}={}; ", quote(&self.rewrite(&value)));
            }
            Step::Copy(sources, to) => {
                let into = to.ends_with('/') || to == "." || sources.len() > 1;
                let to = self.inside(&to)?;
                for source in &sources {
                    self.copy(source, &to, into)?;
                }
            }
            Step::Run(line) => self.run(&line, options)?,
        }
        Ok(())
    }

    fn copy(&mut self, source: &str, to: &str, into: bool) -> Result<(), String> {
        let inside = Path::new(source).components();
        let inside = inside.filter(|part| !matches!(part, Component::CurDir));
        if inside
            .clone()
            .any(|part| !matches!(part, Component::Normal(_)))
        {
            return Err(format!(
                "the Dockerfile copies {source}, which is not in the folder"
            ));
        }
        let path = self.folder.join(inside.collect::<PathBuf>());
        let mut copied = Vec::new();
        if path.is_dir() {
            collect(&path, to, &mut copied)?;
            let private = |target: &str| {
                let inside = target.strip_prefix(to).unwrap_or(target);
                let first = inside.trim_start_matches('/').split('/').next();
                PRIVATE.iter().any(|name| Some(*name) == first)
            };
            // A copy of the whole folder would show the tests and the solution.
            if path.components().eq(self.folder.components()) {
                copied.retain(|(target, _)| !private(target));
            }
        } else {
            let name = path.file_name().and_then(|name| name.to_str());
            let name =
                name.ok_or_else(|| format!("the Dockerfile copies {source}, which has no name"))?;
            let target = if into { join(to, name) } else { to.to_owned() };
            copied.push((target, read_text(&path)?));
        }
        for (target, text) in copied {
            let text = self.rewrite(&text);
            self.files.retain(|(known, _)| *known != target);
            self.files.push((target, text));
        }
        Ok(())
    }

    fn run(&mut self, line: &str, options: &ImportOptions) -> Result<(), String> {
        match dockerfile::installer(line) {
            Some(_) if options.assume_installed => return Ok(()),
            Some(program) => {
                return Err(format!(
                    "its setup uses `{program}`, but a machine has no network; install on the host what it needs, and pass --assume-installed"
                ));
            }
            None => {}
        }
        let change = match self.current.as_str() {
            "" => String::new(),
            current => format!("mkdir -p {0} && cd {0}; ", quote(current)),
        };
        let line = self.rewrite(line);
        self.setup.push(format!("{change}{}{line}", self.env));
        Ok(())
    }

    /// A path of the image as a path below `/work`.
    fn inside(&self, path: &str) -> Result<String, String> {
        let root = self.root();
        let relative = match path.strip_prefix(root) {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => {
                rest.trim_start_matches('/').to_owned()
            }
            _ if path.starts_with('/') => {
                return Err(format!(
                    "the Dockerfile uses {path}, outside of its WORKDIR {root}; a machine can write only that"
                ));
            }
            _ => join(&self.current, path),
        };
        let parts = relative
            .split('/')
            .filter(|part| !matches!(*part, "" | "."));
        let parts: Vec<&str> = parts.collect();
        match parts.contains(&"..") {
            true => Err(format!("the Dockerfile uses {path}; `..` is not followed")),
            false => Ok(parts.join("/")),
        }
    }

    /// Writes paths of the image as those of a machine.
    fn rewrite(&self, text: &str) -> String {
        let text = rewrite(text, self.root(), "/work");
        match self.root() == TESTS {
            true => text,
            false => rewrite(&text, TESTS, "/work/tests"),
        }
    }
}

/// Replaces a path, and the beginning of paths below it.
fn rewrite(text: &str, from: &str, to: &str) -> String {
    let belongs = |c: char| c.is_alphanumeric() || "_-./~$}".contains(c);
    let mut result = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(from) {
        result.push_str(before);
        let ends = match after.strip_prefix('.') {
            // The end of a sentence, not of a longer name.
            Some(next) => !next.starts_with(char::is_alphanumeric),
            None => after.starts_with('/') || !after.starts_with(belongs),
        };
        let whole = ends && !result.ends_with(belongs);
        result.push_str(if whole { to } else { from });
        rest = after;
    }
    result.push_str(rest);
    result
}

fn join(folder: &str, name: &str) -> String {
    match folder {
        "" => name.to_owned(),
        folder => format!("{folder}/{name}"),
    }
}

fn object(files: &[(String, String)]) -> Value {
    let files = files
        .iter()
        .map(|(path, text)| (path.clone(), text.as_str().into()));
    Value::Object(files.collect())
}

/// The files of a folder, by path.
fn collect(folder: &Path, to: &str, files: &mut Vec<(String, String)>) -> Result<(), String> {
    let unreadable = |error| format!("{} cannot be read: {error}", folder.display());
    let entries = std::fs::read_dir(folder).map_err(unreadable)?;
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(unreadable)?.path());
    }
    paths.sort();
    for path in paths {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| format!("{} is no UTF-8", path.display()))?;
        let target = join(to, name);
        if path.is_dir() && !path.is_symlink() {
            collect(&path, &target, files)?;
        } else {
            files.push((target, read_text(&path)?));
        }
    }
    Ok(())
}

/// A text file; a link is not followed, because it may lead out of the folder.
fn read_text(path: &Path) -> Result<String, String> {
    let reject = |why: String| format!("{} {why}", path.display());
    let found = path.symlink_metadata();
    let found = found.map_err(|error| reject(format!("cannot be read: {error}")))?;
    if !found.is_file() {
        return Err(reject("is no regular file".to_owned()));
    }
    if found.len() > MAX_FILE {
        return Err(reject(format!("has more than {MAX_FILE} bytes")));
    }
    let text = std::fs::read_to_string(path);
    text.map_err(|error| reject(format!("is no text: {error}")))
}
