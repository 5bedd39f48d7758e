//! The promises of clawhost, one file each.
