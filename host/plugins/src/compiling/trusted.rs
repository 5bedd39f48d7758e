//! The one place where bytes become machine code that this process runs.
//!
//! The engine cannot check compiled code, only that it was made for an engine like this one: whoever
//! can choose these bytes owns the process. So nothing here takes bytes or paths. It takes
//! [`CompiledCode`], which only our compiler makes, and [`CheckedFile`], which only the cache makes.

#![allow(
    unsafe_code,
    reason = "loading compiled code is unsafe; each call says why these bytes can be trusted"
)]

use std::fs::File;
use std::path::PathBuf;

use wasmtime::component::Component;
use wasmtime::{Engine, Precompiled};

/// Code that our own compiler has just made, in this process or in the one that it started.
pub(super) struct CompiledCode(Vec<u8>);

impl CompiledCode {
    /// The output of a compiler that ended well; none when it is plainly something else.
    pub(super) fn from_compiler(code: Vec<u8>) -> Option<CompiledCode> {
        let is_code = Engine::detect_precompiled(&code) == Some(Precompiled::Component);
        is_code.then_some(CompiledCode(code))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Copies the code to where it can be run.
    pub(super) fn load(&self, engine: &Engine) -> wasmtime::Result<Component> {
        // SAFETY: the bytes must be what `precompile_component` wrote, unchanged. A `CompiledCode` is
        // made in two places: from the result of that function in this process, and from all that
        // the compiler command wrote to a pipe which it alone held, when its exit code says that it
        // wrote all. The command is the operator's choice and documented to be trusted with exactly
        // this. That the code was made for this version of the engine, this processor and these
        // settings is checked by the engine itself.
        unsafe { Component::deserialize(engine, &self.0) }
    }
}

/// A file that belongs to this user and is closed to all others, in a directory that is so too, whose length and
/// checksum are those that were written down beside it when its code was new.
pub(super) struct CheckedFile {
    /// Held open while its name is used.
    _file: File,
    name: PathBuf,
}

impl CheckedFile {
    /// Only the cache calls this, after it has checked the open file. `name` leads to that very file.
    pub(super) fn new(file: File, name: PathBuf) -> CheckedFile {
        CheckedFile { _file: file, name }
    }

    /// Maps the file; pages are read when they are first run.
    pub(super) fn load(&self, engine: &Engine) -> wasmtime::Result<Component> {
        // SAFETY: the file must be what `precompile_component` wrote, and stay so while it is mapped.
        // Who wrote it: the cache only opens a directory that belongs to this user and that its mode
        // closes to everybody else, and holds on to that very directory, so that another put in its
        // place is not looked at. In it, a name ending in `.cwasm` is only ever given, by renaming, to
        // a whole file that was written from a `CompiledCode`. A file that came there otherwise, while the directory
        // was open to others or by a copy that kept owners, belongs to somebody else or is open to others, and was
        // refused: owner and mode of the open file were checked. Somebody who can write there all the
        // same has this user's rights, or root's, and needs no plugin to run code with them.
        // That it stays so: no file of the cache is opened for writing again or made shorter; they
        // are replaced and removed by name, which leaves a mapped one whole.
        // That it is not damaged: its length and checksum were compared a moment ago. The checksum is
        // a CRC-32 and not a digest because it is against broken disks and cut-off files; against
        // somebody who forges, who could as well write the digest beside it, it would say no more.
        unsafe { Component::deserialize_file(engine, &self.name) }
    }
}
