//! Comparing what is on the devices with what should be there, as a scrub does. Meanwhile a device
//! that is far away answers no read from what it keeps in memory of reads and writes.

use std::sync::Arc;

use crate::device::Device;
use crate::volume::Volume;

/// A comparison. It ends when this is dropped.
#[derive(Debug)]
pub struct Comparison(Vec<Arc<dyn Device>>);

impl Volume {
    /// Begins a comparison of what is on the devices.
    pub fn compare_devices(&self) -> Comparison {
        let devices: Vec<_> = self.devices.load().members.iter().map(|member| Arc::clone(&member.device)).collect();
        for device in &devices {
            device.begin_comparing();
        }
        Comparison(devices)
    }
}

impl Drop for Comparison {
    fn drop(&mut self) {
        for device in &self.0 {
            device.end_comparing();
        }
    }
}
