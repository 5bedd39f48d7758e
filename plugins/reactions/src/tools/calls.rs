//! What a call does: whether it shows data, whose words say nothing of the call.

/// The call shows a file, a log or a listing.
pub(super) fn reads_data(call: &str) -> bool {
    let call = call.trim_matches(|c: char| c == '`' || c.is_whitespace());
    let first = call
        .split(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '-')))
        .next()
        .unwrap_or_default()
        .to_lowercase();
    [
        "cat",
        "head",
        "tail",
        "less",
        "more",
        "grep",
        "rg",
        "ag",
        "ack",
        "find",
        "fd",
        "ls",
        "journalctl",
        "dmesg",
        "read_file",
        "search",
        "web_search",
        "search_files",
        "open_file",
        "view",
        "read",
        "fetch",
        "curl",
        "zgrep",
        "awk",
        "sed",
        "bat",
        "list_files",
        "get_logs",
        "logs",
        "query",
        "sqlite3",
        "psql",
    ]
    .contains(&first.as_str())
        || [
            "git log",
            "git show",
            "git diff",
            "git shortlog",
            "git blame",
            "docker logs",
            "kubectl logs",
            "SELECT",
        ]
        .iter()
        .any(|begin| call.starts_with(begin))
}

pub(super) fn begins_like_a_shell_error(line: &str) -> bool {
    let lower = line.to_lowercase();
    [
        "bash:",
        "sh:",
        "zsh:",
        "cat:",
        "ls:",
        "grep:",
        "rg:",
        "head:",
        "tail:",
        "find:",
        "sed:",
        "awk:",
        "fatal:",
        "error:",
        "traceback",
        "permissionerror",
        "filenotfounderror",
        "psql:",
        "curl:",
    ]
    .iter()
    .any(|begin| lower.starts_with(begin))
}

/// A search that exits with 1 because nothing matches did its work.
pub(super) fn found_nothing(text: &str) -> bool {
    let lower = text.to_lowercase();
    text.lines().count() <= 2
        && [
            "no match",
            "no result",
            "nothing found",
            "0 matches",
            "0 results",
            "no files",
            "no output",
            "no entries",
            "empty",
        ]
        .iter()
        .any(|phrase| lower.contains(phrase))
}
