//! The files that this crate carries: the contract, the SDKs, the templates.

include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// The text of a file, by its path in the repository.
///
/// # Panics
/// The file is not one of those that `build.rs` embeds.
pub(crate) fn file(path: &str) -> &'static str {
    match FILES.binary_search_by_key(&path, |(name, _)| name) {
        Ok(at) => FILES[at].1,
        Err(_) => unreachable!("{path} is not embedded"),
    }
}

/// The files below a folder: paths from that folder, and texts.
pub(crate) fn below(folder: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    FILES.iter().filter_map(move |(path, text)| {
        let rest = path.strip_prefix(folder)?.strip_prefix('/')?;
        Some((rest, *text))
    })
}
