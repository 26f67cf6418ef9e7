//! Volumes whose devices were used without each other after a crash: they are not written together
//! until the user says which of them counts (invariant 44).

use std::sync::Arc;

use ubtrfs_errors::sentence;
use ubtrfs_format::{DeviceId, Epochs, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE, Superblock};
use ubtrfs_volume::{Device as _, DeviceWrite, Error, OpenOptions, OverlayDevice, SharedBuffer, Volume};

use crate::device_fault::devid;
use crate::examine::examine_as_it_is;
use crate::look;
use crate::mounting::{forks, mount};
use crate::redundancy::{Trial, record};

impl Trial<'_> {
    /// Mounts one device alone and then the others without it, works on both, and then opens all of
    /// them. `keeps_one` says whether the changes of the one device are kept in the end, or those
    /// of the others. With `forgets_epochs`, nothing shows that they were used apart.
    pub(crate) fn take_apart(
        &self,
        devices: &[OverlayDevice],
        one: usize,
        keeps_one: bool,
        forgets_epochs: bool,
    ) -> Result<(), String> {
        let mut rest: Vec<OverlayDevice> = devices.iter().map(OverlayDevice::fork).collect();
        let alone = vec![rest.remove(one)];
        let half = |devices: &[OverlayDevice], seed: u64| {
            let found = examine_as_it_is(self.judge, devices, self.event, None)?;
            let (model, devices) = Trial { seed, ..*self }.work(devices, &found.model)?;
            if forgets_epochs {
                devices.iter().try_for_each(forget_epochs)?;
            }
            Ok::<_, String>((model, devices))
        };
        let (mut alone, rest) = (half(&alone, self.seed)?, half(&rest, !self.seed)?);
        let mut all: Vec<OverlayDevice> = rest.1.iter().map(OverlayDevice::fork).collect();
        all.insert(one, alone.1.remove(0));
        for open in [Volume::open, Volume::open_degraded] {
            match open(forks(&all), OpenOptions::default()) {
                Err(Error::Apart(_)) => {}
                Err(error) => {
                    return Err(format!(
                        "devices that were used apart are refused for another reason: {}",
                        sentence(&error)
                    ));
                }
                Ok(_) => return Err("devices that were used apart are joined".into()),
            }
        }
        let others = (0..all.len()).filter(|place| *place != one).map(devid);
        let (kept, given_up): (_, Vec<DeviceId>) =
            if keeps_one { (alone.0, others.collect()) } else { (rest.0, vec![devid(one)]) };
        let (recording, recorded) = record(&all);
        let volume = Volume::open_giving_up(&given_up, recorded, false)
            .map_err(|error| format!("devices {given_up:?} can't be given up: {}", sentence(&error)))?;
        let fs = mount(Arc::new(volume), self.judge.options.clone())?;
        let shows = |when: &str| match kept.difference(&look(&fs)?) {
            Some(difference) => Err(format!("{when} devices {given_up:?} are given up: {difference}")),
            None => Ok(()),
        };
        shows("when")?;
        let brought_up =
            fs.scrubber().catch_up(&mut |_| true).map_err(|error| format!("mending failed: {}", error.chain()))?;
        // Other devices may have lagged since the crash.
        if !given_up.iter().all(|devid| brought_up.contains(devid)) {
            return Err(format!("devices {brought_up:?} are brought up, and {given_up:?} are given up"));
        }
        shows("after")?;
        fs.close().map_err(|error| format!("unmounting failed: {}", error.chain()))?;
        self.mend(&recording.all_current(), &kept, None)
    }
}

/// Removes the epochs, as if a kernel had written the superblock.
fn forget_epochs(device: &OverlayDevice) -> Result<(), String> {
    let at = SUPERBLOCK_COPIES[0];
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_at(at, &mut bytes).map_err(|error| sentence(&error))?;
    let superblock = Superblock::parse(&bytes, at).map_err(|error| sentence(&error))?;
    let without = Superblock { epochs: Epochs::default(), ..superblock }.to_bytes();
    let data = SharedBuffer::from(without.map_err(|error| sentence(&error))?.to_vec());
    device.submit(vec![DeviceWrite { at, data }]).wait().map_err(|error| sentence(&error))
}
