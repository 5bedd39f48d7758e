//! The tests of a Python file, as commands: one for each test function, so that the passed share is a share of them.
//!
//! Functions that need nothing of pytest are called by themselves, so machines need no pytest. Either way Python is
//! isolated: neither the directory of the policy nor its environment decides which modules are imported.

use super::shell::quote;

/// The commands of a test file.
pub(super) fn commands(path: &str, text: &str) -> Vec<String> {
    let functions: Vec<(&str, &str)> = text.lines().filter_map(test_function).collect();
    let in_classes = text.lines().any(|line| line.starts_with("class Test"));
    let uses_pytest = text.lines().any(|line| {
        let line = line.trim_start();
        line.starts_with("import pytest") || line.starts_with("from pytest")
    });
    let plain =
        !in_classes && !uses_pytest && functions.iter().all(|(_, rest)| rest.starts_with(')'));
    if functions.is_empty() && !in_classes {
        return Vec::new();
    }
    let runner = "python3 -I -m pytest -q -p no:cacheprovider --noconftest -c /dev/null --rootdir . --import-mode importlib";
    let pytest = |name: &str| format!("{runner} {}", quote(&format!("{path}{name}")));
    if in_classes {
        return vec![pytest("")];
    }
    let command = |name: &str| match plain {
        false => pytest(&format!("::{name}")),
        true => {
            let code = format!(
                "import importlib.util as u; s = u.spec_from_file_location(\"tests\", {path:?}); \
                m = u.module_from_spec(s); s.loader.exec_module(m); m.{name}()"
            );
            format!("python3 -I -c {}", quote(&code))
        }
    };
    functions.iter().map(|(name, _)| command(name)).collect()
}

/// The name of a top-level test function, and what follows its opening parenthesis.
fn test_function(line: &str) -> Option<(&str, &str)> {
    let line = line.strip_prefix("def ")?;
    let (name, rest) = line.split_once('(')?;
    let is_name = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    (name.starts_with("test") && is_name).then_some((name, rest.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_become_commands() {
        let plain = commands(
            "tests/t.py",
            "import os\ndef test_a():\n  pass\ndef help(): pass\ndef test_b() -> None:\n  pass\n",
        );
        assert_eq!(plain.len(), 2);
        assert!(plain[1].starts_with("python3 -I -c '") && plain[1].ends_with("m.test_b()'"));
        let fixture = commands("tests/t.py", "def test_a(tmp_path):\n  pass\n");
        assert!(fixture[0].ends_with("'tests/t.py::test_a'") && fixture[0].contains("pytest"));
        let class = commands("t.py", "class TestA:\n  def test_a(self): pass\n");
        assert!(class[0].ends_with("'t.py'"));
        assert!(commands("t.py", "x = 1").is_empty());
    }
}
