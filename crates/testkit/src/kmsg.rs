//! What the kernel logs about btrfs while a test runs.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::SeekFrom;

/// The level "informational" of a kernel message; smaller numbers are graver.
const INFO: u32 = 6;

/// Messages that the kernel logs about a feature and not about the volume, so that they are no
/// complaints. Neither is the note that repeated messages were left out, since the messages before
/// it show their kind.
const NO_COMPLAINT: [&str; 9] = [
    "space cache v1 is being deprecated",
    "callbacks suppressed",
    // The loop device had another volume before, which the kernel still lists.
    "maj:min changed from 0:0",
    // Concurrent tests try out mount options: these messages name no device.
    "Unknown parameter '",
    "Bad value for '",
    "Deprecated parameter '",
    "is deprecated, use 'rescue=",
    "invalid value 0 for thread_pool",
    "failed to parse compression option",
];

/// Reads the kernel's log from its creation on.
#[derive(Debug)]
pub struct KernelLog {
    file: File,
}

impl KernelLog {
    /// Starts to read the log. Needs root on most machines.
    pub fn watch() -> Self {
        let file = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
            .open("/dev/kmsg")
            .expect("open /dev/kmsg");
        rustix::fs::seek(&file, SeekFrom::End(0)).expect("go to the end of the kernel's log");
        Self { file }
    }

    /// The messages about btrfs above level "info" since the last call, without those that name a
    /// device other than `devices` (such as `loop3`). Messages that the kernel dropped before they
    /// were read are reported as one line.
    pub fn complaints(&mut self, devices: &[String]) -> Vec<String> {
        let mut found = Vec::new();
        let mut record = [0; 8192];
        loop {
            match self.file.read(&mut record) {
                Ok(0) => break,
                Ok(len) => {
                    let text = String::from_utf8_lossy(&record[..len]);
                    found.extend(complaint(&text, devices));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                    found.push("the kernel's log overran; messages were lost".to_owned());
                }
                Err(error) => panic!("read /dev/kmsg: {error}"),
            }
        }
        found
    }
}

/// The message of a record of `/dev/kmsg` ("level,sequence,time,flags;message") if it is a
/// complaint about btrfs.
fn complaint(record: &str, devices: &[String]) -> Option<String> {
    let (head, message) = record.split_once(';')?;
    let level: u32 = head.split(',').next()?.parse().ok()?;
    let message = message.lines().next()?;
    let about_btrfs = message.to_ascii_lowercase().contains("btrfs");
    if level & 7 >= INFO || !about_btrfs || NO_COMPLAINT.iter().any(|s| message.contains(s)) {
        return None;
    }
    // The message names the device of a mount, or a device that the kernel has scanned.
    if let Some((_, rest)) = message.split_once("(device ").or_else(|| message.split_once("device /dev/")) {
        let device: &str = rest.split([' ', ')']).next()?;
        if !devices.iter().any(|ours| ours == device) {
            return None;
        }
    }
    Some(message.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_graver_messages_about_our_devices_count() {
        let ours = ["loop3".to_owned()];
        let found = |record| complaint(record, &ours);
        assert!(found("4,1,2,-;BTRFS warning (device loop3): bad").is_some());
        assert!(found("3,1,2,-;BTRFS error (device loop3 state EA): bad").is_some());
        assert!(found("4,1,2,-;WARNING: CPU: 0 PID: 1 at fs/btrfs/inode.c:1").is_some());
        assert!(found("6,1,2,-;BTRFS info (device loop3): fine").is_none());
        assert!(found("4,1,2,-;BTRFS warning (device loop33): not ours").is_none());
        assert!(found("4,1,2,-;BTRFS warning: device /dev/loop33 is not ours").is_none());
        assert!(found("4,1,2,-;BTRFS warning: device /dev/loop3 is").is_some());
        assert!(found("3,1,2,-;EXT4-fs error").is_none());
        assert!(found("4,1,2,-;BTRFS warning (device loop3): space cache v1 is being deprecated").is_none());
    }
}
