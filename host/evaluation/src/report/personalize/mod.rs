//! Reports of the personalisation evaluation: tables for the terminal and an HTML page.

mod page;
mod published;
mod text;

pub use self::page::personalize_page;
pub use self::text::personalize_table;
