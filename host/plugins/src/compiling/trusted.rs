//! The only place where bytes are loaded as machine code.
//!
//! The engine cannot verify compiled code, only that it was compiled for a compatible engine: whoever controls these
//! bytes controls the process. So this module takes neither bytes nor paths, but [`CompiledCode`], which only the
//! compiler creates, and [`CheckedFile`], which only the cache creates.

#![allow(
    unsafe_code,
    reason = "loading compiled code is unsafe; each call documents why its bytes are trusted"
)]

use std::fs::File;
use std::path::PathBuf;

use wasmtime::component::Component;
use wasmtime::{Engine, Precompiled};

/// Fresh output of the compiler, in this process or in its subprocess.
pub(super) struct CompiledCode(Vec<u8>);

impl CompiledCode {
    /// Wraps the output of a compiler that exited successfully; none if it is not compiled code.
    pub(super) fn from_compiler(code: Vec<u8>) -> Option<CompiledCode> {
        let is_code = Engine::detect_precompiled(&code) == Some(Precompiled::Component);
        is_code.then_some(CompiledCode(code))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Loads the code into executable memory.
    pub(super) fn load(&self, engine: &Engine) -> wasmtime::Result<Component> {
        // SAFETY: the bytes must be the unmodified output of `precompile_component`. A `CompiledCode` is created in two
        // places: from the result of that function in this process, and from the complete output of the compiler
        // command, read from a pipe that only it holds, when its exit code reports success. The operator chooses the
        // command, which is documented to be trusted with exactly this. The engine itself checks that the code was
        // compiled for this engine version, CPU and settings.
        unsafe { Component::deserialize(engine, &self.0) }
    }
}

/// A file that belongs to this user and is inaccessible to others, in a directory with the same properties, whose length
/// and checksum match those recorded when its code was written.
pub(super) struct CheckedFile {
    /// Held open while its path is used.
    _file: File,
    name: PathBuf,
}

impl CheckedFile {
    /// Only the cache calls this, after it has checked the open file. `name` must refer to that file.
    pub(super) fn new(file: File, name: PathBuf) -> CheckedFile {
        CheckedFile { _file: file, name }
    }

    /// Maps the file; pages are read on first execution.
    pub(super) fn load(&self, engine: &Engine) -> wasmtime::Result<Component> {
        // SAFETY: the file must be the output of `precompile_component` and must not change while it is mapped.
        // Origin: the cache only opens a directory that belongs to this user and whose mode excludes everybody else, and
        // holds it open, so that a replacement at its path is never used. In it, only complete files written from a
        // `CompiledCode` are renamed to a name ending in `.cwasm`. A file that got there otherwise, while the directory
        // was accessible to others or by a copy that preserved owners, belongs to another user or is accessible to
        // others, and was rejected by the checks of the open file's owner and mode. Whoever can write there nevertheless
        // has the rights of this user or of root, and needs no plugin to run code with them.
        // Immutability: no file of the cache is opened for writing again or truncated; files are replaced and removed by
        // name, which does not affect a mapped file.
        // Integrity: length and checksum were just compared. The checksum is a CRC-32 and not a digest because it
        // protects against broken disks and truncated files; a forger could as well write a matching digest.
        unsafe { Component::deserialize_file(engine, &self.name) }
    }
}
