//! The calls of each kind of plugin, one module per WIT world. Each call instantiates the component, calls it and
//! validates the result; no unvalidated result leaves these modules.

pub(crate) mod advantage;
pub(crate) mod environment;
pub(crate) mod group_judge;
pub(crate) mod hint;
pub(crate) mod judge;
pub(crate) mod loss;
