//! One file per command.

pub(crate) mod adapter;
pub(crate) mod backup;
pub(crate) mod bench;
pub(crate) mod compile_component;
pub(crate) mod config;
pub(crate) mod demo;
pub(crate) mod eval;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod journal;
pub(crate) mod plugin;
pub(crate) mod pretrain;
pub(crate) mod replay;
pub(crate) mod run;
pub(crate) mod sft;
pub(crate) mod status;
pub(crate) mod train;
