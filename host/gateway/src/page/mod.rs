//! `GET /`: the operator page, with `/page.css` and `/page.js`; no third-party resource is loaded.
//!
//! The page that an operator receives shows the current state without the script, which then keeps it up to date from
//! `/v1/events`. Everyone else receives the same page without data: the script asks for a key, keeps it in
//! `sessionStorage`, and sends it as a header.
//!
//! The page shows untrusted text (of clients, models and plugins). Here all text is escaped with [`HtmlText`]; the script
//! sets text only as `textContent`. The content security policy is a second line of defence: scripts only from this
//! server, none inline, and no strings as markup.

mod chart;
mod html;
mod plots;
mod tables;

use std::fmt::{self, Write as _};
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::header;
use axum::response::{Html, IntoResponse, Response};
use clawhost_journal::now_ms;
use serde_json::Value;

use self::html::{Elapsed, HtmlText};
use crate::auth::Caller;
use crate::error::ApiError;
use crate::events::snapshot::{OperatorView, Snapshot};
use crate::keys::Scope;
use crate::shared::Shared;
use crate::versions;

const STYLE: &str = include_str!("style.css");
/// One module, in parts by topic.
const SCRIPT: &str = concat!(
    include_str!("script/dom.js"),
    include_str!("script/format.js"),
    include_str!("script/api.js"),
    include_str!("script/chart.js"),
    include_str!("script/plots.js"),
    include_str!("script/tables.js"),
    include_str!("script/owners.js"),
    include_str!("script/releases.js"),
    include_str!("script/experience.js"),
    include_str!("script/chat.js"),
    include_str!("script/main.js"),
);
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

/// Renders the operator page.
pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    let snapshot = match caller.has_scope(Scope::Operator) {
        true => Some(shared.run_blocking(Snapshot::for_operator).await?),
        false => None,
    };
    let mut page = String::with_capacity(32 << 10);
    write(&mut page, &shared, snapshot.as_ref())
        .map_err(|_| ApiError::internal("page_failed", "the page could not be rendered"))?;
    let headers = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, Html(page)).into_response())
}

/// The style sheet of the page.
pub(crate) async fn style() -> Response {
    asset("text/css; charset=utf-8", STYLE)
}

/// The script of the page.
pub(crate) async fn script() -> Response {
    asset("text/javascript; charset=utf-8", SCRIPT)
}

fn asset(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}

fn write(page: &mut String, shared: &Shared, snapshot: Option<&Snapshot>) -> fmt::Result {
    let name = HtmlText(&shared.options.model_name);
    write!(
        page,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <noscript><meta http-equiv=\"refresh\" content=\"10\"></noscript>\
         <title>{name} · clawhost</title><link rel=\"stylesheet\" href=\"/page.css\">\
         <script type=\"module\" src=\"/page.js\"></script></head><body>\
         <header><div><h1 id=\"model\">{name}</h1><p id=\"summary\">",
    )?;
    if let Some(snapshot) = snapshot {
        let active = shared.versions.active(&shared.engine);
        write!(
            page,
            "adapter <code>{}</code> · up {}",
            HtmlText(&versions::label(&active)),
            Elapsed(now_ms() - snapshot.started_ms),
        )?;
    }
    page.push_str(
        "</p></div><p id=\"connection\"><span id=\"live\"></span> <span id=\"who\"></span> \
         <button id=\"forget-key\" type=\"button\" hidden>Forget key</button></p></header><div id=\"errors\">",
    );
    for error in snapshot.into_iter().flat_map(|snapshot| &snapshot.errors) {
        write!(page, "<p class=\"error\">{}</p>", HtmlText(error))?;
    }
    page.push_str("</div>");
    page.push_str(include_str!("forms.html"));
    page.push_str(match snapshot {
        Some(_) => "<main id=\"main\">",
        None => "<noscript><p>Entering a key requires JavaScript.</p></noscript><main id=\"main\" hidden>",
    });
    // The script fills it if there are owners.
    page.push_str(
        "<p id=\"owners\" class=\"row\" hidden><label for=\"owner\">Adapter of</label> <select id=\"owner\"></select></p>",
    );
    page.push_str("<section id=\"tiles\" class=\"tiles\">");
    let operator = snapshot.and_then(|snapshot| snapshot.operator.as_ref());
    if let Some(operator) = operator {
        tiles(page, operator)?;
    }
    page.push_str("</section><p id=\"note\">");
    let note = operator.and_then(|operator| operator.training.get("stale_note"));
    if let Some(note) = note.and_then(Value::as_str) {
        write!(page, "{}", HtmlText(note))?;
    }
    page.push_str("</p><section id=\"plots\" class=\"plots\">");
    if let Some(snapshot) = snapshot {
        plots::write(page, snapshot)?;
    }
    page.push_str("</section>");
    page.push_str(include_str!("controls.html"));
    page.push_str("<section><h2>Last replies</h2><div id=\"turns\" class=\"scroll\">");
    if let Some(snapshot) = snapshot {
        tables::turns(page, &snapshot.records.turns)?;
    }
    page.push_str(
        "</div></section><section class=\"operator\"><h2>Training steps</h2><div id=\"steps\" class=\"scroll\">",
    );
    if let Some(operator) = operator {
        tables::steps(page, &operator.records.steps)?;
    }
    page.push_str(
        "</div></section><section class=\"operator\" hidden><h2>Plugins</h2>\
         <div id=\"plugins\" class=\"scroll\"></div></section></main></body></html>",
    );
    Ok(())
}

fn tiles(page: &mut String, operator: &OperatorView) -> fmt::Result {
    let counts = &operator.records.counts;
    let no_verdict = match counts.no_verdict.values().sum::<u64>() {
        0 => String::new(),
        none => format!("no verdict {none}"),
    };
    let tiles = [
        ("sessions", counts.sessions, String::new()),
        (
            "turns",
            counts.turns.values().sum(),
            format_counts(&counts.turns),
        ),
        ("verdicts", counts.verdicts, no_verdict),
        ("feedback", counts.feedback, String::new()),
        (
            "samples",
            counts.samples.values().sum(),
            format_counts(&counts.samples),
        ),
        (
            "steps",
            counts.steps.values().sum(),
            format_counts(&counts.steps),
        ),
        ("adapters", counts.adapters, String::new()),
    ];
    for (label, value, detail) in tiles {
        write!(
            page,
            "<div><b>{value}</b><span>{label}</span><small>{}</small></div>",
            HtmlText(&detail)
        )?;
    }
    Ok(())
}

fn format_counts<K: fmt::Display>(counts: &std::collections::BTreeMap<K, u64>) -> String {
    let parts: Vec<String> = counts
        .iter()
        .map(|(word, count)| format!("{word} {count}"))
        .collect();
    parts.join(", ")
}
