//! The durable record of turns, verdicts, samples, steps and adapters
