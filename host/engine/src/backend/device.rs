//! What is known of the device that a backend runs on.

/// A device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its name as the vendor writes it.
    pub name: String,
    /// Its memory; `None` where it cannot be read.
    pub memory: Option<DeviceMemory>,
}

/// Memory of a device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    /// All of it.
    pub total: u64,
    /// What is in use, by this and other processes.
    pub used: u64,
}
