//! Questions with an exact check, and tools that the component answers itself: see [`task_question`].
//!
//! It uses no files, processes, network or clock, so it needs no grant.

clawhost_sdk::export_environment!(task_question::Question<task_question::NoInterpreter>);
