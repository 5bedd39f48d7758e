//! Personas, fixed scorers, arms and reports: does it learn?
