//! Exit codes, and fields of JSON objects that report success or failure.

use super::Sign;

/// `exit code: 1`, `"exit_code": 0`, `Process exited with status 2`, `returncode=1`.
pub(super) fn exit_code(text: &str) -> Option<Sign> {
    let lower = text.to_ascii_lowercase();
    for name in [
        "exit code",
        "exit_code",
        "exitcode",
        "exit status",
        "exit_status",
        "return code",
        "returncode",
        "return_code",
        "exited with code",
        "exited with status",
        "exited with",
        "status code",
        "http status",
        "statuscode",
        "status_code",
    ] {
        let Some((_, after)) = lower.split_once(name) else {
            continue;
        };
        let after = after.trim_start_matches(['"', '\'', ':', '=', ' ', '\t', '(']);
        let after = after.strip_prefix("of ").unwrap_or(after);
        let number: String = after
            .chars()
            .enumerate()
            .take_while(|(i, c)| c.is_ascii_digit() || (*i == 0 && *c == '-'))
            .map(|(_, c)| c)
            .collect();
        let Ok(code) = number.parse::<i64>() else {
            continue;
        };
        let is_http = name.starts_with("status") || name.starts_with("http");
        let good = if is_http {
            (0..400).contains(&code)
        } else {
            code == 0
        };
        let why = format!("{} {code}", name.replace('_', " "));
        return Some(if good {
            Sign::Worked(why)
        } else {
            Sign::Failed(why, false)
        });
    }
    None
}

/// `"error": "…"`, `"success": false`, `"status": "ok"` in a JSON object.
pub(super) fn json_fields(text: &str) -> Option<Sign> {
    if !text.starts_with('{') && !text.starts_with("[{") {
        return None;
    }
    let field = |name: &str| -> Option<String> {
        let (_, after) = text.split_once(&format!("\"{name}\""))?;
        let value = after.trim_start().strip_prefix(':')?.trim_start();
        let inner = value.strip_prefix('"').unwrap_or(value);
        let end = if value.starts_with('"') {
            inner.find('"').unwrap_or(inner.len())
        } else {
            inner.find([',', '}', '\n']).unwrap_or(inner.len())
        };
        Some(inner.get(..end)?.trim().to_ascii_lowercase())
    };
    for name in [
        "error",
        "errors",
        "error_message",
        "exception",
        "is_error",
        "isError",
        "traceback",
        "failed",
    ] {
        if let Some(value) = field(name) {
            let none = ["", "null", "none", "false", "0", "[]", "{}", "{", "["];
            let empty_list = value == "[" && text.contains("[]");
            if !none.contains(&value.as_str())
                || (matches!(value.as_str(), "{" | "[") && !empty_list)
            {
                return Some(Sign::Failed(
                    format!("\"{name}\": {}", value.chars().take(80).collect::<String>()),
                    value.split_whitespace().count() > 2,
                ));
            }
        }
    }
    let explained = ["reason", "message", "detail", "hint"]
        .iter()
        .any(|name| field(name).is_some_and(|why| why.split_whitespace().count() > 2));
    for name in ["success", "ok", "succeeded"] {
        if matches!(field(name).as_deref(), Some("false" | "0")) {
            return Some(Sign::Failed(format!("\"{name}\": false"), explained));
        }
    }
    if let Some(status) = field("status")
        && matches!(
            status.as_str(),
            "error"
                | "failed"
                | "failure"
                | "fail"
                | "timeout"
                | "denied"
                | "forbidden"
                | "not_found"
                | "rejected"
                | "declined"
                | "invalid"
                | "unauthorized"
        )
    {
        return Some(Sign::Failed(format!("\"status\": {status}"), explained));
    }
    field("passed")
        .filter(|passed| passed == "true" || passed.parse::<u64>().is_ok_and(|count| count > 0))
        .map(|passed| Sign::Worked(format!("\"passed\": {passed}")))
}
