//! Where plugins are compiled and where their code is kept: said once, for every command.
//!
//! Only the program itself compiles in processes of its own and keeps what comes out, because only it
//! knows that running it again runs the same program, and only it has a user with a cache directory.
//! Whoever uses this crate as a library compiles in its own process and writes nowhere.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;

use clawhost_plugins::{CompilerCommand, HostOptions, PluginError, PluginHost};

/// Where compiled components are kept, or `off`.
const CACHE: &str = "CLAWHOST_CACHE";
/// The subcommand that compiles one component and ends.
pub(crate) const SUBCOMMAND: &str = "compile-component";

/// What the program adds to every host of plugins.
struct Program {
    compiler: Option<CompilerCommand>,
    cache: Option<PathBuf>,
}

static PROGRAM: OnceLock<Program> = OnceLock::new();

/// Says that this process is the program. Later calls change nothing.
pub(crate) fn is_the_program() {
    let compiler = itself().map(|path| CompilerCommand::new(path, [SUBCOMMAND]));
    let cache = cache(|name| std::env::var_os(name));
    // A second call says the same.
    let _ = PROGRAM.set(Program { compiler, cache });
}

/// A host of plugins that compiles as the program does.
///
/// # Errors
/// As [`PluginHost::new`].
pub(crate) fn host(options: HostOptions) -> Result<PluginHost, PluginError> {
    PluginHost::new(with_program(options))
}

/// Where `clawhost plugin build` keeps components whose tools give other bytes each time: beside compiled code, off as
/// that is.
pub(crate) fn kept_builds() -> Option<PathBuf> {
    Some(PROGRAM.get()?.cache.as_ref()?.join("built"))
}

/// The options with what the program adds; unchanged where something else uses this crate.
fn with_program(mut options: HostOptions) -> HostOptions {
    if let Some(program) = PROGRAM.get() {
        options.compiler = options.compiler.or_else(|| program.compiler.clone());
        options.cache = options.cache.or_else(|| program.cache.clone());
    }
    options
}

/// This very program, also when its file has been replaced by a newer one since it started: a newer one
/// may make code that this one cannot run.
fn itself() -> Option<PathBuf> {
    let link = PathBuf::from("/proc/self/exe");
    match cfg!(target_os = "linux") && link.exists() {
        true => Some(link),
        false => std::env::current_exe().ok(),
    }
}

fn cache(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name| variable(name).filter(|value| !value.is_empty());
    if let Some(named) = set(CACHE) {
        return (named != "off").then(|| std::path::absolute(&named).unwrap_or(named.into()));
    }
    // A relative one means nothing, says the standard of these directories.
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
        cache(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn the_cache_is_where_the_user_keeps_caches_unless_it_is_named_or_off() {
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
    fn a_library_compiles_in_its_own_process_and_keeps_nothing() {
        let options = with_program(HostOptions::default());
        assert_eq!((options.compiler, options.cache), (None, None));
    }
}
