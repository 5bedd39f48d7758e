//! Files whose changes do not count: tests, and what decides how tests run.

/// Directories of tests, anywhere.
const DIRECTORIES: [&str; 3] = ["test", "tests", "__tests__"];
/// Files that configure a runner or are loaded by it, anywhere.
const FILES: [&str; 11] = [
    ".coveragerc",
    ".gitattributes",
    "conftest.py",
    "nose.cfg",
    "noxfile.py",
    "pyproject.toml",
    "pytest.ini",
    "setup.cfg",
    "sitecustomize.py",
    "tox.ini",
    "usercustomize.py",
];
/// Modules that would be loaded instead of a runner's, in the top directory.
const RUNNERS: [&str; 5] = ["_pytest", "nose", "pluggy", "pytest", "unittest"];

/// The files and directories of a task whose changes do not count.
pub(crate) struct Protected(Vec<String>);

impl Protected {
    /// With further files and directories of the task.
    pub(crate) fn new(paths: Vec<String>) -> Protected {
        let trim = |path: String| path.trim_matches(['/', '.']).to_owned();
        // A name that begins with a dot keeps it.
        let clean = |path: String| match path.trim_start_matches("./") {
            hidden if hidden.starts_with('.') => hidden.trim_end_matches('/').to_owned(),
            _ => trim(path),
        };
        Protected(paths.into_iter().map(clean).collect())
    }

    /// Whether the task lists the file itself.
    pub(crate) fn contains_file(&self, path: &str) -> bool {
        self.0.iter().any(|known| known == path)
    }

    /// Whether a change of the file counts not. A file in place of a directory of a protected file counts not either.
    pub(crate) fn contains(&self, path: &str) -> bool {
        let within = |inner: &str, outer: &str| {
            inner
                .strip_prefix(outer)
                .is_some_and(|rest| rest.starts_with('/'))
        };
        let listed = |known: &String| path == known || within(path, known) || within(known, path);
        self.0.iter().any(listed) || is_test(path) || is_runner(path)
    }
}

fn is_test(path: &str) -> bool {
    let mut parts = path.rsplit('/');
    let file = parts.next().unwrap_or_default();
    let stem = file.split('.').next().unwrap_or_default();
    file.starts_with("test_")
        || stem.ends_with("_test")
        || file.contains(".test.")
        || file.contains(".spec.")
        || file.ends_with(".pth")
        || FILES.contains(&file)
        // A file in place of such a directory, and a module that would be loaded instead of it.
        || DIRECTORIES.contains(&stem)
        || parts.any(|part| DIRECTORIES.contains(&part))
}

fn is_runner(path: &str) -> bool {
    let top = path.split('/').next().unwrap_or_default();
    RUNNERS.contains(&top.strip_suffix(".py").unwrap_or(top))
}
