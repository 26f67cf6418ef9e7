//! Comparing what is on the devices with what should be there, as a scrub does. Meanwhile a device
//! that is far away answers no read from what it keeps in memory of reads and writes.

use std::sync::Arc;

use crate::device::Device;

/// A comparison. It ends when this is dropped.
#[derive(Debug)]
pub struct Comparison(Vec<Arc<dyn Device>>);

impl Comparison {
    /// Begins a comparison of what is on these devices.
    pub(crate) fn of(devices: Vec<Arc<dyn Device>>) -> Self {
        for device in &devices {
            device.begin_comparing();
        }
        Self(devices)
    }
}

impl Drop for Comparison {
    fn drop(&mut self) {
        for device in &self.0 {
            device.end_comparing();
        }
    }
}
