//! The numbers of a step by their path.

use serde_json::Value;

/// Every finite number in a step's metrics, and every yes or no as 1 or 0, by its path with `/` between names, such as
/// `proof/mean`. Lists and texts are left out.
pub fn flat_metrics(metrics: &Value) -> Vec<(String, f64)> {
    let mut found = Vec::new();
    collect(metrics, "", &mut found);
    found
}

fn collect(value: &Value, path: &str, found: &mut Vec<(String, f64)>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}/{name}")
                };
                collect(value, &path, found);
            }
        }
        Value::Number(number) => {
            if let Some(number) = number.as_f64().filter(|number| number.is_finite()) {
                found.push((path.to_owned(), number));
            }
        }
        Value::Bool(yes) => found.push((path.to_owned(), f64::from(u8::from(*yes)))),
        Value::Null | Value::String(_) | Value::Array(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_have_their_path_and_the_rest_is_left_out() {
        let metrics = json!({"loss": 0.5, "proof": {"mean": 1, "raised": null}, "name": "x", "rows": [1], "full": true});
        let expected = [("loss", 0.5), ("proof/mean", 1.0), ("full", 1.0)];
        assert_eq!(
            flat_metrics(&metrics),
            expected.map(|(path, value)| (path.to_owned(), value))
        );
    }
}
