//! Common parts of all HTML pages: self-contained files without scripts.

use super::about::About;
use crate::plot::escape;

const STYLE: &str = "\
:root{color-scheme:light dark;--s0:#0a6b5d;--s1:#9a5b00;--s2:#2456a8;--s3:#8a2670;--s4:#b3261e;--s5:#5b5b5b;--s6:#3f6b00;--s7:#6a4bd1;--s8:#8a5a44;--s9:#007a99;--line:#8884;--soft:#8881}\
@media(prefers-color-scheme:dark){:root{--s0:#4fd1b5;--s1:#f0b45a;--s2:#8ab4f8;--s3:#e59ad0;--s4:#f2998f;--s5:#bdbdbd;--s6:#a8d468;--s7:#b7a5f5;--s8:#d0a58f;--s9:#6fd0e8}}\
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2rem}\
.s0{color:var(--s0)}.s1{color:var(--s1)}.s2{color:var(--s2)}.s3{color:var(--s3)}.s4{color:var(--s4)}.s5{color:var(--s5)}.s6{color:var(--s6)}.s7{color:var(--s7)}.s8{color:var(--s8)}.s9{color:var(--s9)}\
.plot{width:100%;height:auto;font:12px system-ui,sans-serif}\
pre,td.said{white-space:pre-wrap;overflow-wrap:anywhere}\
pre{background:var(--soft);padding:.8rem;border-radius:.4rem;font-size:.85rem}\
pre.wide{white-space:pre;overflow-x:auto}\
table{border-collapse:collapse;width:100%;font-size:.9rem}\
th,td{border:1px solid var(--line);padding:.4rem .6rem;text-align:left;vertical-align:top}\
summary{cursor:pointer}";

/// A page up to its headline. Texts of models and personas that follow must be escaped.
pub(super) fn page_header(headline: &str) -> String {
    let headline = escape(headline);
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>clawhost: {headline}</title><style>{STYLE}</style></head><body><h1>{headline}</h1>"
    )
}

/// Rows of a table of facts; empty values are omitted.
pub(super) fn rows(facts: &[(String, String)]) -> String {
    let shown = facts.iter().filter(|(_, value)| !value.is_empty());
    shown
        .map(|(name, value)| {
            format!(
                "<tr><th>{}</th><td class=\"said\">{}</td></tr>",
                escape(name),
                escape(value)
            )
        })
        .collect()
}

/// The command line that reproduces the run, if known.
pub(super) fn reproduce(about: &About) -> String {
    if about.reproduce.is_empty() {
        return String::new();
    }
    format!("<pre>{}</pre>", escape(&about.reproduce))
}
