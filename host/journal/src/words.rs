//! States and kinds are stored as words, so that a person with `sqlite3` can read them.
//!
//! One list per enum gives the word, its reading, its JSON form and its database form, which
//! therefore cannot drift apart. An unknown word in the database is damage, never a default.

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash,
            serde::Serialize, serde::Deserialize,
        )]
        pub enum $name {
            $($(#[$vdoc])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// Every value, in order.
            pub const ALL: &'static [$name] = &[$($name::$variant,)+];

            /// The word by which it is stored and shown.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word,)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::words::UnknownWord;

            fn from_str(text: &str) -> Result<$name, $crate::words::UnknownWord> {
                match text {
                    $($word => Ok($name::$variant),)+
                    other => Err($crate::words::UnknownWord {
                        text: other.to_owned(),
                        kind: stringify!($name),
                        known: &[$($word,)+],
                    }),
                }
            }
        }

        impl rusqlite::types::ToSql for $name {
            fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
                Ok(rusqlite::types::ToSqlOutput::from(self.as_str()))
            }
        }

        impl rusqlite::types::FromSql for $name {
            fn column_result(
                value: rusqlite::types::ValueRef<'_>,
            ) -> rusqlite::types::FromSqlResult<$name> {
                value.as_str()?.parse().map_err(rusqlite::types::FromSqlError::other)
            }
        }
    };
}
pub(crate) use words;

/// A word that names no value of the enum asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no {kind}: known are {}", known.join(", "))]
pub struct UnknownWord {
    /// What was given.
    pub text: String,
    /// Which enum was wanted.
    pub kind: &'static str,
    /// The words it has.
    pub known: &'static [&'static str],
}
