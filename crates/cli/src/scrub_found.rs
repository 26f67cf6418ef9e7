//! The findings of a scrub on one device, or on all devices of a volume that is not mounted.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use ubtrfs::ScrubProgress;
use ubtrfs_format::DeviceId;
use ubtrfs_server::scrub::{ARGUMENT_SIZE, counters, extent};

use crate::size::show_size;

/// The findings of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Found {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<u64>,
    /// The device is missing: nothing of it was compared.
    pub missing: bool,
    pub data_bytes: u64,
    pub tree_bytes: u64,
    pub read_errors: u64,
    pub checksum_errors: u64,
    /// How many of these are sectors of parity; unknown for a mount.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parity_errors: Option<u64>,
    pub super_errors: u64,
    pub corrected: u64,
    pub uncorrectable: u64,
    /// How long the scrub took, or has been running so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<u64>,
    /// While the scrub runs: about how many bytes have to be compared in all, and about how long
    /// the rest takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
}

impl Found {
    /// Returns the findings on a device from the answer to an ioctl.
    pub fn of(device: DeviceId, argument: &[u8; ARGUMENT_SIZE]) -> Self {
        let counters = counters(argument);
        let of = |name: &str| counters.iter().find(|(known, _)| *known == name).map_or(0, |(_, value)| *value);
        Self {
            device: Some(device.0),
            data_bytes: of("data_bytes_scrubbed"),
            tree_bytes: of("tree_bytes_scrubbed"),
            read_errors: of("read_errors"),
            checksum_errors: of("csum_errors").saturating_add(of("verify_errors")),
            super_errors: of("super_errors"),
            corrected: of("corrected_errors"),
            uncorrectable: of("uncorrectable_errors"),
            ..Self::default()
        }
    }

    /// Returns the findings on a device of a scrub that is running.
    pub fn so_far(device: DeviceId, argument: &[u8; ARGUMENT_SIZE]) -> Self {
        let found = Self::of(device, argument);
        let Some((total, millis)) = extent(argument) else { return found };
        let total = total.max(found.bytes());
        let found = found.within(Duration::from_millis(millis));
        let left = |rate: u64| (total - found.bytes()).div_ceil(rate);
        let seconds_left = found.bytes_per_second.filter(|rate| *rate > 0).map(left);
        Self { total_bytes: Some(total), seconds_left, ..found }
    }

    /// Returns the findings of a scrub of devices that are not mounted.
    pub fn of_volume(found: &ScrubProgress) -> Self {
        let ScrubProgress { data, trees, parity, .. } = found;
        Self {
            data_bytes: data.bytes,
            tree_bytes: trees.bytes,
            read_errors: data.read_errors + trees.read_errors + parity.read_errors,
            checksum_errors: data.checksum_errors + trees.checksum_errors + parity.checksum_errors,
            parity_errors: Some(parity.checksum_errors),
            super_errors: found.super_errors,
            corrected: data.corrected + trees.corrected,
            uncorrectable: found.uncorrectable(),
            ..Self::default()
        }
    }

    /// Returns the findings on a device of which nothing was compared.
    pub fn nothing(device: DeviceId) -> Self {
        Self { device: Some(device.0), ..Self::default() }
    }

    /// Returns the findings on a device that is missing.
    pub fn missing(device: DeviceId) -> Self {
        Self { missing: true, ..Self::nothing(device) }
    }

    /// Returns the findings with the time that the scrub took.
    pub fn within(self, time: Duration) -> Self {
        let rate = u128::from(self.bytes()) * 1_000_000 / time.as_micros().max(1);
        let bytes_per_second = Some(u64::try_from(rate).unwrap_or(u64::MAX));
        Self { seconds: Some(time.as_secs()), bytes_per_second, seconds_left: None, ..self }
    }

    /// Returns how many bytes were compared.
    pub fn bytes(&self) -> u64 {
        self.data_bytes.saturating_add(self.tree_bytes)
    }

    /// Returns the findings as a sentence.
    pub fn as_text(&self) -> String {
        let device = self.device.map_or_else(String::new, |device| format!("device {device}: "));
        if self.missing {
            return format!("{device}missing, nothing of it was compared");
        }
        let wrong = [self.checksum_errors, self.super_errors].into_iter().fold(self.read_errors, u64::saturating_add);
        let compared = match self.total_bytes {
            Some(total) => format!("{} of about {} compared", show_size(self.bytes()), show_size(total)),
            None => format!("{} compared", show_size(self.bytes())),
        };
        let errors = if wrong == 0 {
            // On a device that lags, data without checksums is rewritten, whether it was wrong or
            // not.
            match (self.corrected, self.uncorrectable) {
                (0, 0) => "no error".into(),
                (rewritten, not) => format!("no error, {rewritten} rewritten, {not} could not be"),
            }
        } else {
            let parity = self.parity_errors.filter(|sectors| *sectors > 0);
            let parity = parity.map_or_else(String::new, |sectors| format!(" ({sectors} of them sectors of parity)"));
            format!(
                "{} unreadable, {} wrong{parity}, {} damaged superblocks; {} rewritten, {} could not be",
                self.read_errors, self.checksum_errors, self.super_errors, self.corrected, self.uncorrectable
            )
        };
        let rate = self.bytes_per_second.map_or_else(String::new, |rate| format!("; {}/s", show_size(rate)));
        let left = self.seconds_left.map_or_else(String::new, |left| format!(", about {} left", hours(left)));
        format!("{device}{compared}, {errors}{rate}{left}")
    }
}

/// Returns a time as hours, minutes and seconds.
pub fn hours(seconds: u64) -> String {
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_time_are_said() {
        let found = Found { device: Some(2), data_bytes: 3 << 20, tree_bytes: 1 << 20, ..Found::default() };
        let done = found.clone().within(Duration::from_secs(2));
        assert_eq!(done.as_text(), "device 2: 4.00 MiB compared, no error; 2.00 MiB/s");
        let running = Found { total_bytes: Some(400 << 20), seconds_left: Some(198), ..done.clone() };
        let text = "device 2: 4.00 MiB of about 400.00 MiB compared, no error; 2.00 MiB/s, about 0:03:18 left";
        assert_eq!(running.as_text(), text);
        let away = Found { uncorrectable: 113, seconds: None, bytes_per_second: None, ..done };
        assert_eq!(away.as_text(), "device 2: 4.00 MiB compared, no error, 0 rewritten, 113 could not be");
        let missing = Found::missing(DeviceId(3));
        assert_eq!(missing.as_text(), "device 3: missing, nothing of it was compared");
        let json = serde_json::to_string(&running).unwrap();
        assert_eq!(serde_json::from_str::<Found>(&json).unwrap(), running);
    }
}
