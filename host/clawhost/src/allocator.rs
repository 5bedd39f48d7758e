//! How the C library's allocator is set for a server that runs for months.

#![allow(unsafe_code, reason = "the C library's settings have no safe form")]

/// Lets it keep one arena for each processor, as many as can work at a time. By itself it takes eight for each; every
/// one keeps what its threads once needed, and a server with a thread for each task grows for hours.
/// `MALLOC_ARENA_MAX` in the environment goes before. Nothing to set where the C library is not glibc.
pub(crate) fn settle() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if std::env::var_os("MALLOC_ARENA_MAX").is_none() {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let arenas = libc::c_int::try_from(processors).unwrap_or(libc::c_int::MAX);
        // SAFETY: it takes two numbers and changes a setting under the allocator's own lock. What it answers is
        // whether it knows the setting; without it memory is kept as before.
        let _known = unsafe { libc::mallopt(libc::M_ARENA_MAX, arenas) };
    }
}
