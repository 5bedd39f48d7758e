//! Where plugins are compiled and where compiled code is cached, for every command.
//!
//! Only the `clawhost` program compiles in subprocesses and uses a cache: only it knows that executing current_program again
//! runs the same code, and only it has a user with a cache directory. Users of this crate as a library compile in
//! process and write nothing.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;

use clawhost_plugins::{CompilerCommand, HostOptions, PluginError, PluginHost};

/// Directory of the compiled-component cache, or `off`.
const CACHE: &str = "CLAWHOST_CACHE";
/// The subcommand that compiles one component.
pub(crate) const SUBCOMMAND: &str = "compile-component";

/// Settings that the program adds to every plugin host.
struct Program {
    compiler: Option<CompilerCommand>,
    cache: Option<PathBuf>,
}

static PROGRAM: OnceLock<Program> = OnceLock::new();

/// Marks this process as the `clawhost` program. Later calls have no effect.
pub(crate) fn enable_subprocess_compiler() {
    let compiler = current_program().map(|path| CompilerCommand::new(path, [SUBCOMMAND]));
    let cache = cache_dir(|name| std::env::var_os(name));
    // A second call would set the same values.
    let _ = PROGRAM.set(Program { compiler, cache });
}

/// Creates a plugin host with the program's compiler and cache.
///
/// # Errors
/// As [`PluginHost::new`].
pub(crate) fn host(options: HostOptions) -> Result<PluginHost, PluginError> {
    PluginHost::new(with_program(options))
}

/// Path with which this program starts itself again. None when this crate is used as a library.
pub(crate) fn program() -> Option<PathBuf> {
    PROGRAM.get().and_then(|_| current_program())
}

/// Directory in which `clawhost plugin build` caches components whose tools are not reproducible: inside the cache of
/// compiled code, and off when that is off.
pub(crate) fn component_cache() -> Option<PathBuf> {
    Some(PROGRAM.get()?.cache.as_ref()?.join("built"))
}

/// Directory in which components from registries are cached: inside the cache of compiled code, and off when that is off.
pub(crate) fn pulled_cache() -> Option<PathBuf> {
    Some(PROGRAM.get()?.cache.as_ref()?.join("pulled"))
}

/// Adds the program's compiler and cache to the options. Returns them unchanged when this crate is used as a library.
fn with_program(mut options: HostOptions) -> HostOptions {
    if let Some(program) = PROGRAM.get() {
        options.compiler = options.compiler.or_else(|| program.compiler.clone());
        options.cache = options.cache.or_else(|| program.cache.clone());
    }
    options
}

/// Path of the running executable. On Linux it stays valid when the file has been replaced by a newer build, which may
/// compile code that this process cannot run.
fn current_program() -> Option<PathBuf> {
    let link = PathBuf::from("/proc/self/exe");
    match cfg!(target_os = "linux") && link.exists() {
        true => Some(link),
        false => std::env::current_exe().ok(),
    }
}

fn cache_dir(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name| variable(name).filter(|value| !value.is_empty());
    if let Some(named) = set(CACHE) {
        return (named != "off").then(|| std::path::absolute(&named).unwrap_or(named.into()));
    }
    // The XDG specification says that relative paths are to be ignored.
    let base = set("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.filter(|path| path.is_absolute());
    let home = || Some(PathBuf::from(set("HOME")?).join(".cache"));
    let base = base.or_else(home).filter(|path| path.is_absolute())?;
    Some(base.join("clawhost").join("compiled"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache_with(variables: &[(&str, &str)]) -> Option<PathBuf> {
        cache_dir(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn the_cache_dir_follows_xdg_unless_it_is_set_or_off() {
        let home = ("HOME", "/home/ada");
        let found = |variables: &[_]| cache_with(variables).unwrap();
        let usual = PathBuf::from("/home/ada/.cache/clawhost/compiled");
        assert_eq!(found(&[home]), usual);
        assert_eq!(found(&[home, ("XDG_CACHE_HOME", "relative")]), usual);
        assert_eq!(found(&[home, (CACHE, "")]), usual);
        assert_eq!(
            found(&[home, ("XDG_CACHE_HOME", "/var/cache/ada")]),
            PathBuf::from("/var/cache/ada/clawhost/compiled")
        );
        assert_eq!(found(&[home, (CACHE, "/fast")]), PathBuf::from("/fast"));
        assert!(found(&[home, (CACHE, "here")]).is_absolute());
        assert_eq!(cache_with(&[home, (CACHE, "off")]), None);
        assert_eq!(cache_with(&[]), None);
        assert_eq!(cache_with(&[("HOME", "")]), None);
    }

    #[test]
    fn a_library_compiles_in_process_without_a_cache() {
        let options = with_program(HostOptions::default());
        assert_eq!((options.compiler, options.cache), (None, None));
    }
}
