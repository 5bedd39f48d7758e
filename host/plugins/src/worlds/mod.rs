//! What can be asked of each kind of plugin: one module a world. A world instantiates, calls, and
//! checks what comes back; nothing unchecked leaves this folder.

pub(crate) mod advantage;
pub(crate) mod environment;
pub(crate) mod group_judge;
pub(crate) mod hint;
pub(crate) mod judge;
pub(crate) mod loss;
