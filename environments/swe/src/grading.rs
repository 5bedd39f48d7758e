//! Grading: the change of the policy is applied to the original repository in a fresh machine, for each test in another
//! one, so that no test finds what another left. The first test that fails decides.

use clawhost_sdk::PluginError;
use clawhost_sdk::sandbox::{self, Machine};
use task_machine::{Done, Test, failure, of_output, settle, shell};

use crate::Swe;
use crate::change::Change;
use crate::control::{Control, random_id};
use crate::files::FILES_TIMEOUT_MS;
use crate::task::Named;

/// What grading found.
#[derive(Default)]
pub(crate) struct Grade {
    /// Why the task is not solved; none if it is.
    pub(crate) failure: Option<String>,
    pub(crate) passed: usize,
    pub(crate) changed: usize,
    pub(crate) dropped: Vec<String>,
    pub(crate) patch: String,
}

impl Swe {
    pub(crate) fn grade_change(&mut self) -> Result<Grade, PluginError> {
        let mut grade = Grade::default();
        let change = match self.take_change()? {
            Ok(change) => change,
            Err(why) => {
                grade.failure = Some(why);
                return Ok(grade);
            }
        };
        grade.changed = change.written.len() + change.deleted.len();
        grade.dropped.clone_from(&change.dropped);
        for (index, test) in self.work.tests.iter().enumerate() {
            let machine = self.original.restore()?;
            if index == 0 {
                grade.patch = change.patch(&machine)?;
            }
            grade.failure = self.failure(&machine, &change, test)?;
            if grade.failure.is_some() {
                return Ok(grade);
            }
            grade.passed += 1;
        }
        if let Some(named) = &self.work.named {
            grade.failure = self.forgery(&change, named)?;
        }
        Ok(grade)
    }

    /// The change, or why there is none. The policy's machine is released first, so that episodes that are graded do not
    /// wait for each other's.
    fn take_change(&mut self) -> Result<Result<Change, String>, PluginError> {
        let ended = || Ok(Err("the machine has ended".to_owned()));
        let Some(machine) = self.machine.take() else {
            return ended();
        };
        let snapshot = match settle(machine.snapshot())? {
            Done::Value(snapshot) => snapshot,
            Done::Rejected(why) => return Ok(Err(format!("the files cannot be taken out: {why}"))),
            Done::Ended => return ended(),
        };
        drop(machine);
        // What does not fit into a machine is the policy's fault, because its own machine had the same limits.
        let machine = match sandbox::restore(&snapshot) {
            Err(sandbox::Error::QuotaExceeded(why)) => {
                return Ok(Err(format!("the files cannot be taken out: {why}")));
            }
            restored => restored.map_err(failure)?,
        };
        let change = Change::take(&machine, &self.original.files, &self.work.protected)?;
        Ok(change.and_then(|change| match change.is_empty() {
            true => Err(match &change.dropped[..] {
                [] => "nothing was changed".to_owned(),
                dropped => format!(
                    "nothing was changed but files whose changes do not count: {}",
                    dropped.join(", ")
                ),
            }),
            false => Ok(change),
        }))
    }

    /// Why a test fails in a machine with the original repository; none if it passes.
    fn failure(
        &self,
        machine: &Machine,
        change: &Change,
        test: &Test,
    ) -> Result<Option<String>, PluginError> {
        if let Some(why) = change.apply(machine)? {
            return Ok(Some(why));
        }
        self.write_tests(machine)?;
        let failure = test.run(&self.id, machine)?;
        Ok(failure.map(|why| format!("{}: {why}", test.command)))
    }

    /// Writes the hidden tests over what the policy left. Its change has none of their files, so it cannot prevent that.
    fn write_tests(&self, machine: &Machine) -> Result<(), PluginError> {
        for (path, text) in &self.work.test_files {
            let written = machine.write_file(path, text.as_bytes());
            written.map_err(failure)?;
        }
        let Some(patch) = &self.work.test_patch else {
            return Ok(());
        };
        let mut command = shell("git apply --whitespace=nowarn -", FILES_TIMEOUT_MS);
        command.stdin = patch.clone().into_bytes();
        let output = machine.exec(&command).map_err(failure)?;
        match output.exit {
            sandbox::Exit::Code(0) => Ok(()),
            _ => Err(PluginError::InvalidInput(format!(
                "task {}: `test_patch` does not apply: {}",
                self.id,
                of_output(&output)
            ))),
        }
    }

    /// Which test file passes whatever it tests; none if no one does.
    fn forgery(&self, change: &Change, named: &Named) -> Result<Option<String>, PluginError> {
        for control in &self.controls {
            let machine = self.original.restore()?;
            let id = random_id(&machine)?;
            if let Some(why) = change.apply(&machine)? {
                return Ok(Some(why));
            }
            self.write_tests(&machine)?;
            let (name, code) = control.test(&id);
            append(&machine, &control.path, &code)?;
            let forged = named.test(&[name]).run(&self.id, &machine)?.is_none();
            if forged {
                return Ok(Some(format!(
                    "the tests of {} were forged: a test that must fail passes",
                    control.path
                )));
            }
        }
        Ok(None)
    }

    /// The controls of the named tests, one for each test file.
    pub(crate) fn find_controls(&self, named: &Named) -> Result<Vec<Control>, String> {
        let listed = String::from_utf8_lossy(&self.original.files);
        let is_listed = |path: &str| {
            listed
                .lines()
                .any(|line| line.ends_with(&format!("  ./{path}")))
        };
        let is_file = |path: &str| self.work.protected.contains_file(path) || is_listed(path);
        let mut controls: Vec<Control> = Vec::new();
        for name in &named.names {
            let control = Control::of(name, &is_file).ok_or_else(|| {
                format!(
                    "the test `{name}` is in no Python file of the repository; \
                    leave out `test_command` and give tests as commands with `stdout`"
                )
            })?;
            if !controls.iter().any(|known| known.path == control.path) {
                controls.push(control);
            }
        }
        let runs = self.work.tests.len() + controls.len();
        let seconds = f64::from(named.timeout_ms) * runs as f64 / 1e3;
        if seconds > task_machine::MAX_TIMEOUT {
            return Err(format!(
                "{runs} runs of tests and controls may take {seconds} seconds together; at most {} are allowed, so lower `test_timeout`",
                task_machine::MAX_TIMEOUT
            ));
        }
        Ok(controls)
    }
}

fn append(machine: &Machine, path: &str, code: &str) -> Result<(), PluginError> {
    crate::files::write_file(machine, &format!("/work/{path}"), code.as_bytes())
}
