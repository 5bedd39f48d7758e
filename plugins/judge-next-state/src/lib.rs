//! Scores a turn from what followed it
