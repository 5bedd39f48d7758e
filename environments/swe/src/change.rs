//! The change of the policy: which files of the repository it wrote and deleted.
//!
//! The files that the policy left are looked at in a fresh machine, where nothing of it runs. Changes of protected files
//! are dropped. Links and other special files are no part of a change, nor are `.git` and caches of Python.

use clawhost_sdk::PluginError;
use clawhost_sdk::sandbox::{Command, Machine};
use task_machine::{Done, failure, of_output, settle, shell};

use crate::files::{FILES_TIMEOUT_MS, LIST, expect_success, list_command, read_file, write_file};
use crate::protected::Protected;
use crate::task::quote;

/// The most that a change may have.
const MAX_FILES: usize = 500;
const MAX_BYTES: usize = 8 << 20;
/// Bytes of the patch in a report.
const MAX_PATCH: u32 = 8 << 10;
const BEFORE: &str = "/tmp/.files-before";
const DIFFERENCE: &str = "/tmp/.files-difference";

/// What the policy changed.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Change {
    /// Paths and contents.
    pub(crate) written: Vec<(String, Vec<u8>)>,
    pub(crate) deleted: Vec<String>,
    /// Files that became executable, or no longer are.
    modes: Vec<(String, bool)>,
    /// Changes that do not count.
    pub(crate) dropped: Vec<String>,
}

impl Change {
    /// Takes the change out of a fresh machine with the files that the policy left; or why it is no change.
    pub(crate) fn take(
        machine: &Machine,
        before: &[u8],
        protected: &Protected,
    ) -> Result<Result<Change, String>, PluginError> {
        write_file(machine, BEFORE, before)?;
        expect_success(machine, &list_command())?;
        let compare = format!("touch {BEFORE}; LC_ALL=C comm -3 {BEFORE} {LIST} > {DIFFERENCE}");
        expect_success(machine, &shell(&compare, FILES_TIMEOUT_MS))?;
        let too_large = Ok(Err(format!(
            "the change has more than {MAX_FILES} files or {MAX_BYTES} bytes"
        )));
        let Some(difference) = read_file(machine, DIFFERENCE, MAX_BYTES)? else {
            return too_large;
        };
        let difference = difference.concat();
        let mut change = Change::parse(&String::from_utf8_lossy(&difference), protected);
        if change.written.len() + change.deleted.len() > MAX_FILES {
            return too_large;
        }
        let mut size = 0;
        for (path, bytes) in &mut change.written {
            let path = format!("/work/{path}");
            let Some(content) = read_file(machine, &path, MAX_BYTES - size)? else {
                return too_large;
            };
            *bytes = content.concat();
            size += bytes.len();
        }
        Ok(Ok(change))
    }

    /// Reads what `comm -3` printed of two lists: lines of the second list begin with a tab.
    fn parse(difference: &str, protected: &Protected) -> Change {
        let mut change = Change::default();
        let mut removed = Vec::new();
        for line in difference.lines() {
            let (is_new, entry) = match line.strip_prefix('\t') {
                Some(entry) => (true, entry),
                None => (false, line),
            };
            let Some((kind, path)) = entry.split_once("  ./") else {
                continue;
            };
            let is_hash = kind.len() == 64 && kind.bytes().all(|byte| byte.is_ascii_hexdigit());
            // A name that is not UTF-8, or one that no tool escapes alike, is no part of a change.
            if !(is_hash || kind == "executable") || path.contains(['\u{fffd}', '\\', '\t']) {
                continue;
            }
            let path = path.to_owned();
            if protected.contains(&path) {
                if !change.dropped.contains(&path) {
                    change.dropped.push(path);
                }
            } else if !is_hash {
                change.modes.push((path, is_new));
            } else if is_new {
                change.written.push((path, Vec::new()));
            } else {
                removed.push(path);
            }
        }
        let is_written = |path: &String| change.written.iter().any(|(known, _)| known == path);
        removed.retain(|path| !is_written(path));
        change
            .modes
            .retain(|(path, is_executable)| *is_executable || !removed.contains(path));
        change.deleted = removed;
        change
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.written.is_empty() && self.deleted.is_empty() && self.modes.is_empty()
    }

    /// Applies it to a fresh machine with the original repository; or why it does not apply.
    pub(crate) fn apply(&self, machine: &Machine) -> Result<Option<String>, PluginError> {
        for paths in self.deleted.chunks(100) {
            expect_success(machine, &on_files(&["/bin/rm", "-f", "--"], paths))?;
        }
        for (path, bytes) in &self.written {
            match settle(machine.write_file(path, bytes))? {
                Done::Value(()) => {}
                Done::Rejected(why) => {
                    return Ok(Some(format!("the change of {path} does not apply: {why}")));
                }
                Done::Ended => return Ok(Some(format!("the change of {path} does not apply"))),
            }
        }
        for (mode, wanted) in [("+x", true), ("-x", false)] {
            let paths = self.modes.iter().filter(|(_, mode)| *mode == wanted);
            let paths: Vec<String> = paths.map(|(path, _)| path.clone()).collect();
            for paths in paths.chunks(100) {
                expect_success(machine, &on_files(&["/bin/chmod", mode, "--"], paths))?;
            }
        }
        Ok(None)
    }

    /// The change as text, made in a machine with the original repository, before it is applied.
    pub(crate) fn patch(&self, machine: &Machine) -> Result<String, PluginError> {
        let mut lines = vec!["mkdir -p /tmp/.patch/a /tmp/.patch/b; cd /work".to_owned()];
        let written = self.written.iter().map(|(path, _)| path);
        for path in written.chain(&self.deleted) {
            lines.push(format!(
                "cp --parents -- {} /tmp/.patch/a 2>/dev/null",
                quote(path)
            ));
        }
        // From a file: the command line may be too long for an argument.
        write_file(machine, "/tmp/.patch.sh", lines.join("\n").as_bytes())?;
        machine
            .exec(&shell("sh /tmp/.patch.sh", FILES_TIMEOUT_MS))
            .map_err(failure)?;
        for (path, bytes) in &self.written {
            let path = format!("/tmp/.patch/b/{path}");
            match settle(machine.write_file(&path, bytes))? {
                Done::Value(()) => {}
                Done::Rejected(why) => return Ok(format!("(no patch: {why})")),
                Done::Ended => return Ok("(no patch)".to_owned()),
            }
        }
        let line = "cd /tmp/.patch; LC_ALL=C diff -ruN a b; rm -rf /tmp/.patch /tmp/.patch.sh";
        let mut command = shell(line, FILES_TIMEOUT_MS);
        command.max_output = MAX_PATCH;
        let output = machine.exec(&command).map_err(failure)?;
        match output.stderr.is_empty() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Ok(format!("(no patch: {})", of_output(&output))),
        }
    }
}

fn on_files(words: &[&str], paths: &[String]) -> Command {
    let mut command = shell("", FILES_TIMEOUT_MS);
    let words = words.iter().map(|word| (*word).to_owned());
    command.argv = words.chain(paths.iter().cloned()).collect();
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_of_lists_is_a_change() {
        let (a, b) = ("a".repeat(64), "b".repeat(64));
        let difference = format!(
            "{a}  ./lib.sh\n\t{b}  ./lib.sh\n{a}  ./old.sh\nexecutable  ./old.sh\n\texecutable  ./run.sh\n\
            \t{a}  ./tests/x.sh\n{a}  ./tests/x.sh\n\t\\{a}  ./odd\\nname\nforged  ./a\n\t{b}  ./new/deep file.sh\nexecutable  ./plain.sh\n"
        );
        let change = Change::parse(&difference, &Protected::new(Vec::new()));
        let written: Vec<&str> = change
            .written
            .iter()
            .map(|(path, _)| path.as_str())
            .collect();
        assert_eq!(written, ["lib.sh", "new/deep file.sh"]);
        assert_eq!(change.deleted, ["old.sh"]);
        let modes = [("run.sh".to_owned(), true), ("plain.sh".to_owned(), false)];
        assert_eq!(change.modes, modes);
        assert_eq!(change.dropped, ["tests/x.sh"]);
    }
}
