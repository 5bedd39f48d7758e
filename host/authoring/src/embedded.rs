//! The files that this crate carries: the contract, the SDKs, the templates.

include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// The text of a file, by its path in the repository.
pub(crate) fn file(path: &str) -> Option<&'static str> {
    let at = FILES.binary_search_by_key(&path, |(name, _)| name).ok()?;
    FILES.get(at).map(|(_, text)| *text)
}

/// The files below a folder: paths from that folder, and texts.
pub(crate) fn below(folder: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    FILES.iter().filter_map(move |(path, text)| {
        let rest = path.strip_prefix(folder)?.strip_prefix('/')?;
        Some((rest, *text))
    })
}
