//! Collecting turns from live traffic: continuity, next state, retries, idle
