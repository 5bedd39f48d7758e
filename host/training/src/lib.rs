//! Advantages, losses, optimizer, checkpoints and release of adapters
