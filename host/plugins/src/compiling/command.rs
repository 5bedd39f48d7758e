//! How a compiler is started.

use std::ffi::OsString;
use std::path::PathBuf;

/// The command that runs [`crate::compile_component`] in a process of its own. It is started with an
/// empty environment in the root directory. What it writes is run as machine code, so it must be a
/// program that is trusted like this one: as a rule it *is* this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompilerCommand {
    /// The program, as an absolute path.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

impl CompilerCommand {
    /// A program with arguments.
    pub fn new<A: Into<OsString>>(
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = A>,
    ) -> CompilerCommand {
        CompilerCommand {
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
        }
    }
}
