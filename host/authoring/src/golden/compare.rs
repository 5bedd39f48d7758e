//! Compares a value with the expected one.

use serde_json::Value;

/// How far a number may be from the expected one, relative to it and at least to 1: languages compute
/// in double precision what travels in single.
const TOLERANCE: f64 = 1e-6;

/// Returns an error for the first difference. Objects may have more fields than expected, lists may not have more elements.
pub(crate) fn compare(place: &str, expected: &Value, actual: &Value) -> Result<(), String> {
    let differs = || Err(format!("{place} is {actual}, expected is {expected}"));
    match (expected, actual) {
        (Value::Object(expected), Value::Object(actual)) => {
            for (key, expected) in expected {
                let place = format!("{place}.{key}");
                let Some(found) = actual.get(key) else {
                    let whole = Value::Object(actual.clone());
                    return Err(format!("{place} is not there; the answer is {whole}"));
                };
                compare(&place, expected, found)?;
            }
            Ok(())
        }
        (Value::Array(expected), Value::Array(actual)) => {
            if expected.len() != actual.len() {
                return differs();
            }
            for (at, (expected, actual)) in expected.iter().zip(actual).enumerate() {
                compare(&format!("{place}[{at}]"), expected, actual)?;
            }
            Ok(())
        }
        (Value::Number(wanted), Value::Number(found)) => {
            let (wanted, found) = (wanted.as_f64(), found.as_f64());
            match wanted.zip(found) {
                Some((w, f)) if (w - f).abs() <= TOLERANCE * w.abs().max(1.0) => Ok(()),
                _ => differs(),
            }
        }
        _ if expected == actual => Ok(()),
        _ => differs(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_expected_fields_are_compared() {
        let actual = json!({"reward": 0.14_f32, "rationale": "7 words", "votes": [{"score": 1.0}]});
        let compare = |expected: Value| compare("the answer", &expected, &actual);
        assert!(compare(json!({})).is_ok());
        assert!(compare(json!({"reward": 0.14, "votes": [{}]})).is_ok());
        assert!(
            compare(json!({"reward": 0.15}))
                .unwrap_err()
                .contains("the answer.reward")
        );
        assert!(compare(json!({"votes": []})).is_err());
        assert!(
            compare(json!({"error": "denied"}))
                .unwrap_err()
                .contains("7 words")
        );
        assert!(compare(json!([])).is_err());
    }
}
