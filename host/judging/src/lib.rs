//! Votes, verdicts and samples
