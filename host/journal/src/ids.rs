//! The names by which the rooms speak of one session, turn, sample or step.
//!
//! Numbers are given by the journal, grow, and are never used twice, also not after a session was
//! forgotten. A session id is the client's or the sessions room's own text.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A text that is not an id of the kind asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a {kind} id: give {wanted}")]
pub struct IdError {
    /// What was given.
    pub text: String,
    /// Which kind of id was wanted.
    pub kind: &'static str,
    /// What would have been accepted.
    pub wanted: &'static str,
}

/// One conversation with one client. Any text that is not empty.
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
                wanted: "a text that is not empty",
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
                        wanted: "a whole number from 1 up",
                    }),
                }
            }
        }
    };
}

number_id!(
    /// One reply of the model, finished or not. From 1 up, in order of arrival.
    TurnId,
    "turn"
);
number_id!(
    /// One turn with a reward, waiting to be trained or done with. From 1 up.
    SampleId,
    "sample"
);
number_id!(
    /// One pass of the trainer over a batch of samples. From 1 up.
    StepId,
    "step"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_back_what_they_print() {
        assert_eq!("17".parse::<TurnId>().unwrap(), TurnId(17));
        assert_eq!(TurnId(17).to_string(), "17");
        assert_eq!(SessionId::from("a b").to_string(), "a b");
        assert_eq!(serde_json::to_string(&StepId(3)).unwrap(), "3");
    }

    #[test]
    fn a_wrong_id_says_what_would_be_right() {
        let error = "seven".parse::<SampleId>().unwrap_err().to_string();
        assert!(
            error.contains("seven") && error.contains("sample"),
            "{error}"
        );
        assert!("0".parse::<TurnId>().is_err());
        assert!("  ".parse::<SessionId>().is_err());
    }
}
