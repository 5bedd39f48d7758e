//! Enums stored as strings, so that they are readable with `sqlite3`.
//!
//! [`string_enum!`] defines `Display`, `FromStr`, serde and SQL conversions from one list of names, so that they agree.
//! An unknown name in the database is an error, never a default.

macro_rules! string_enum {
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
            /// All variants, in order.
            pub const ALL: &'static [$name] = &[$($name::$variant,)+];

            /// The name in the database, in JSON and in output.
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
            type Err = $crate::string_enum::UnknownVariant;

            fn from_str(text: &str) -> Result<$name, $crate::string_enum::UnknownVariant> {
                match text {
                    $($word => Ok($name::$variant),)+
                    other => Err($crate::string_enum::UnknownVariant {
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
pub(crate) use string_enum;

/// A string that is not a variant of the enum.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown {kind} {text:?}: expected one of {}", known.join(", "))]
pub struct UnknownVariant {
    /// The input.
    pub text: String,
    /// Name of the enum.
    pub kind: &'static str,
    /// Names of its variants.
    pub known: &'static [&'static str],
}
