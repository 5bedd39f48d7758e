//! One file per command.

use std::convert::Infallible;

pub(crate) mod adapter;
pub(crate) mod backup;
pub(crate) mod bench;
pub(crate) mod compile_component;
pub(crate) mod config;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod env;
pub(crate) mod eval;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod journal;
pub(crate) mod plugin;
pub(crate) mod replay;
pub(crate) mod run;
pub(crate) mod sft;
pub(crate) mod status;
pub(crate) mod supervise_machines;
pub(crate) mod train;

/// Parser of a flag that has another name now: any value is an error that names it.
fn renamed(new: &'static str) -> impl Fn(&str) -> Result<Infallible, String> + Clone {
    move |_| Err(format!("the flag is now {new}"))
}
