//! Ids of sessions, turns, samples and steps.
//!
//! Numeric ids are assigned by the journal in increasing order and never reused, even after a deletion. A session id is
//! a string from the client or from the `sessions` crate.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A string that is not a valid id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid {kind} id {text:?}: expected {wanted}")]
pub struct IdError {
    /// The input.
    pub text: String,
    /// The kind of id.
    pub kind: &'static str,
    /// The expected format.
    pub wanted: &'static str,
}

/// Id of one conversation with one client: any non-empty string.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(pub String);

impl SessionId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for SessionId {
    fn from(text: &str) -> SessionId {
        SessionId(text.to_owned())
    }
}

impl FromStr for SessionId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<SessionId, IdError> {
        if text.trim().is_empty() {
            return Err(IdError {
                text: text.to_owned(),
                kind: "session",
                wanted: "a non-empty string",
            });
        }
        Ok(SessionId(text.to_owned()))
    }
}

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub i64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<$name, IdError> {
                match text.trim().parse::<i64>() {
                    Ok(number) if number > 0 => Ok($name(number)),
                    _ => Err(IdError {
                        text: text.to_owned(),
                        kind: $kind,
                        wanted: "a positive integer",
                    }),
                }
            }
        }
    };
}

number_id!(
    /// Id of one turn: a request and the model's reply, finished or not. Starts at 1, in order of arrival.
    TurnId,
    "turn"
);
number_id!(
    /// Id of one training sample, made from a turn. Starts at 1.
    SampleId,
    "sample"
);
number_id!(
    /// Id of one training step over a batch of samples. Starts at 1.
    StepId,
    "step"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_round_trip_through_their_text_form() {
        assert_eq!("17".parse::<TurnId>().unwrap(), TurnId(17));
        assert_eq!(TurnId(17).to_string(), "17");
        assert_eq!(SessionId::from("a b").to_string(), "a b");
        assert_eq!(serde_json::to_string(&StepId(3)).unwrap(), "3");
    }

    #[test]
    fn an_invalid_id_names_the_input_and_the_kind() {
        let error = "seven".parse::<SampleId>().unwrap_err().to_string();
        assert!(
            error.contains("seven") && error.contains("sample"),
            "{error}"
        );
        assert!("0".parse::<TurnId>().is_err());
        assert!("  ".parse::<SessionId>().is_err());
    }
}
