//! Flattens step metrics to (path, number) pairs.

use serde_json::Value;

/// Every finite number in a step's metrics, with booleans as 1 or 0, by its path with `/` between keys, such as
/// `proof/mean`. Arrays and strings are skipped.
pub fn flatten_metrics(metrics: &Value) -> Vec<(String, f64)> {
    let mut numbers = Vec::new();
    collect_numbers(metrics, "", &mut numbers);
    numbers
}

fn collect_numbers(value: &Value, path: &str, numbers: &mut Vec<(String, f64)>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}/{name}")
                };
                collect_numbers(value, &path, numbers);
            }
        }
        Value::Number(number) => {
            if let Some(number) = number.as_f64().filter(|number| number.is_finite()) {
                numbers.push((path.to_owned(), number));
            }
        }
        Value::Bool(flag) => numbers.push((path.to_owned(), f64::from(u8::from(*flag)))),
        Value::Null | Value::String(_) | Value::Array(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_finite_numbers_and_booleans_are_flattened() {
        let metrics = json!({"loss": 0.5, "proof": {"mean": 1, "raised": null}, "name": "x", "rows": [1], "full": true});
        let expected = [("loss", 0.5), ("proof/mean", 1.0), ("full", 1.0)];
        assert_eq!(
            flatten_metrics(&metrics),
            expected.map(|(path, value)| (path.to_owned(), value))
        );
    }
}
