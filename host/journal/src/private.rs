//! What people said belongs to whoever runs the server: directories 0700, files 0600.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::path::Path;

/// Creates a directory and its parents that only this user can enter. One that exists keeps its mode.
///
/// # Errors
/// As [`DirBuilder::create`].
pub fn create_dir(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Options that create a file which only this user can read.
pub fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Creates a file that only this user can read, empty when it exists.
///
/// # Errors
/// As [`File::create`].
pub fn create_file(path: &Path) -> io::Result<File> {
    options().write(true).create(true).truncate(true).open(path)
}

/// Takes the access of group and others away from a file or directory that an older version or another program made.
///
/// # Errors
/// Whatever keeps the mode from being read or changed.
pub fn restrict(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mut permissions = std::fs::metadata(path)?.permissions();
        if permissions.mode() & 0o077 != 0 {
            permissions.set_mode(permissions.mode() & 0o700);
            std::fs::set_permissions(path, permissions)?;
        }
    }
    #[cfg(not(unix))]
    let _no_modes = path;
    Ok(())
}
