//! Settings of the C library's allocator for a server that runs for months.

#![allow(unsafe_code, reason = "mallopt has no safe wrapper")]

/// Limits glibc malloc to one arena per processor. The default is eight per processor; each arena keeps the high-water
/// mark of its threads, so the memory of a server with many threads grows for hours. `MALLOC_ARENA_MAX` in the
/// environment takes precedence. Does nothing where the C library is not glibc.
pub(crate) fn limit_arenas() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if std::env::var_os("MALLOC_ARENA_MAX").is_none() {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let arenas = libc::c_int::try_from(processors).unwrap_or(libc::c_int::MAX);
        // SAFETY: mallopt takes two integers and changes a setting under the allocator's own lock. It returns whether
        // it knows the setting; if not, the default stays.
        let _known = unsafe { libc::mallopt(libc::M_ARENA_MAX, arenas) };
    }
}
