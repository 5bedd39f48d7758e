//! The evaluation of personalisation, for people: tables for a terminal, and one page to keep.

mod page;
mod published;
mod text;

pub use self::page::personalize_page;
pub use self::text::personalize_table;
