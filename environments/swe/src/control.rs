//! Controls of named tests.
//!
//! A named test runs in one process with the code of the policy, which could make every test pass: end the process with
//! exit code 0, or change the runner. So each test file also runs with a test that must fail, whose name the code of the
//! policy cannot know. If that passes, no result of the file means anything.

use clawhost_sdk::PluginError;
use clawhost_sdk::sandbox::Machine;
use task_machine::failure;

/// A test that must fail, at the end of a test file.
#[derive(Debug, PartialEq)]
pub(crate) struct Control {
    /// The test file.
    pub(crate) path: String,
    /// The name of the file for the runner, with what comes between it and a class.
    prefix: String,
    separator: &'static str,
}

impl Control {
    /// The control of a named test; none if its file is not known.
    pub(crate) fn of(name: &str, is_file: &dyn Fn(&str) -> bool) -> Option<Control> {
        let file = name.split("::").next().unwrap_or_default();
        let control = |path: String, prefix: &str, separator| {
            is_file(&path).then(|| Control {
                path,
                prefix: prefix.to_owned(),
                separator,
            })
        };
        if file.ends_with(".py") {
            return control(file.to_owned(), file, "::");
        }
        let ends = name.char_indices().filter(|(_, c)| *c == '.');
        let ends = ends.map(|(at, _)| at).chain([name.len()]);
        let module = |end: usize| {
            let module = name.get(..end)?;
            control(format!("{}.py", module.replace('.', "/")), module, ".")
        };
        ends.rev().find_map(module)
    }

    /// The name of the test, and the code of it for the end of the file.
    pub(crate) fn test(&self, id: &str) -> (String, String) {
        let Control {
            prefix, separator, ..
        } = self;
        let name = format!("{prefix}{separator}Test{id}{separator}test_{id}");
        // It also passes if a check that fails is not noticed.
        let code = format!(
            "\n\nimport unittest as unittest_{id}\n\n\nclass Test{id}(unittest_{id}.TestCase):\n    def test_{id}(self):\n        \
            checks = [\n            lambda: self.assertEqual(1, 2),\n            lambda: self.assertTrue(False),\n            \
            lambda: self.assertIn(1, []),\n            lambda: self.assertRaises(KeyError, int),\n            lambda: self.fail(),\n        ]\n        \
            for check in checks:\n            try:\n                check()\n            except AssertionError:\n                continue\n            \
            return\n        raise AssertionError\n"
        );
        (name, code)
    }
}

/// A name that nothing in the machine can know in advance.
pub(crate) fn random_id(machine: &Machine) -> Result<String, PluginError> {
    let uuid = machine.read_file("/proc/sys/kernel/random/uuid", 64);
    let uuid = uuid.map_err(failure)?;
    let digits = uuid.iter().filter(|byte| byte.is_ascii_hexdigit());
    Ok(digits.map(|byte| char::from(*byte)).collect())
}
