//! Volumes on several devices, one of which is gone, stale or damaged after a crash: nothing that
//! was promised is lost, and afterwards the volume is as redundant as before.

use std::sync::Arc;

use ubtrfs::{Errno, Error, Filesystem, Options, ScrubOptions};
use ubtrfs_errors::sentence;
use ubtrfs_format::{DeviceId, Physical, SUPERBLOCK_COPIES};
use ubtrfs_volume::{Device, DeviceWrite, OverlayDevice, ReadAheadDevice, RecordingDevice, SharedBuffer};

use crate::device_fault::devid;
use crate::examine::examine_as_it_is;
use crate::mounting::{forks, open};
use crate::perform::Tolerance;
use crate::words::file;
use crate::{DeviceFault, Found, Generator, Habits, Judge, Model, Operation, Random, Session, look};

/// Operations on a volume with such a device.
const OPERATIONS: usize = 5;

/// Makes devices with the content of these that record all requests. Returns also the first of
/// them, which has the timeline of all.
pub(crate) fn record(devices: &[OverlayDevice]) -> (Arc<RecordingDevice>, Vec<Arc<dyn Device>>) {
    let recorded: Vec<_> = RecordingDevice::together(devices).into_iter().map(Arc::new).collect();
    (Arc::clone(&recorded[0]), recorded.into_iter().map(|device| device as _).collect())
}

/// The kinds of the few operations on a state that a crash left.
pub(crate) const MODEST: Habits = Habits {
    remount: false,
    privileges: false,
    large: false,
    huge: false,
    eager: false,
    fsyncs: true,
    shares: false,
    subvolumes: false,
    devices: false,
};

/// A crash state that is examined.
pub(crate) struct Trial<'a> {
    /// What was promised.
    pub judge: &'a Judge,
    /// Events before the crash.
    pub event: usize,
    /// Determines the operations on the volume.
    pub seed: u64,
    /// Any device can be lost.
    pub is_redundant: bool,
}

impl Trial<'_> {
    /// Judges a volume, one of whose devices may have a fault; that device without the fault is
    /// given with it. Returns what is found, or a sentence if that is not as promised.
    ///
    /// Then it works on the volume as it is, adds the device again if it was gone, and brings it up
    /// to the others. After that all copies of everything are right, and any device can be lost.
    pub(crate) fn endure(
        &self,
        broken: &[OverlayDevice],
        fault: Option<(DeviceFault, &OverlayDevice)>,
    ) -> Result<Found, String> {
        let seen = examine_as_it_is(self.judge, broken, self.event, None)?;
        let (model, mut devices) = self.work(broken, &seen.model)?;
        if let Some((DeviceFault::Gone(place), back)) = fault {
            devices.insert(place, back.fork());
        }
        let lagging = fault.filter(|(fault, _)| matches!(fault, DeviceFault::Gone(_) | DeviceFault::Stale { .. }));
        self.mend(&devices, &model, lagging.map(|(fault, _)| devid(fault.device())))?;
        Ok(seen)
    }

    /// Mounts a volume, works on it, and unmounts. Returns its state then.
    pub(crate) fn work(&self, devices: &[OverlayDevice], found: &Model) -> Result<(Model, Vec<OverlayDevice>), String> {
        let (recording, recorded) = record(devices);
        let options = self.judge.options.clone();
        let tolerance = Tolerance { no_space: true, faults: false };
        let timeline = Arc::clone(&recording);
        let mut session = Session::open_devices(timeline, recorded, options, Some(found.clone()), tolerance)?;
        let mut generator = Generator::new(self.seed, MODEST);
        let generation = session.worker.fs.generation();
        session.perform(&Operation::Look)?;
        for _ in 0..OPERATIONS {
            let operation = generator.next(&session.worker.model, session.worker.handles.len());
            session.perform(&operation)?;
        }
        session.perform(&file("a change"))?;
        session.perform(&Operation::Sync)?;
        if session.worker.fs.generation() == generation {
            let (tolerated, reason) = (session.worker.tolerated, session.worker.fs.abort_reason());
            return Err(format!("a change is not committed: {tolerated} operations found no space; {reason:?}"));
        }
        session.worker.fs.close().map_err(|error| format!("unmounting failed: {}", error.chain()))?;
        let mut model = session.worker.model.clone();
        model.drop_orphans();
        Ok((model, recording.all_current()))
    }

    /// Brings devices that lag up to the others, and mends everything else. Then all copies are
    /// right, and the volume without any one device shows the same. `lagging` is known to lag.
    ///
    /// Half of the volumes are on distant devices. On half of all volumes, one device then loses
    /// some of the writes of this mount, though it has reported them as durable: a scrub mends
    /// that, whatever is kept in memory.
    pub(crate) fn mend(
        &self,
        devices: &[OverlayDevice],
        model: &Model,
        lagging: Option<DeviceId>,
    ) -> Result<(), String> {
        let mut random = Random::new(self.seed);
        let is_distant = random.one_in(2);
        let open = |devices: &[OverlayDevice]| {
            let (recording, recorded) = record(devices);
            let distant = |device: &Arc<dyn Device>| Arc::new(ReadAheadDevice::new(Arc::clone(device), 0)) as _;
            let opened = if is_distant { recorded.iter().map(distant).collect() } else { recorded.clone() };
            open(opened, self.judge.options.clone()).map(|fs| (recording, recorded, fs))
        };
        let (mut recording, mut recorded, mut fs) = open(devices)?;
        let mut before: Vec<OverlayDevice> = devices.iter().map(OverlayDevice::fork).collect();
        // Data without checksums that was in flight is not the same on all current devices.
        let is_exact = lagging.is_some() && devices.len() == 2;
        if let Some(difference) = model.difference_except_nodatacow(&look(&fs)?) {
            return Err(format!("with all devices something else is shown: {difference}"));
        }
        if lagging.is_some_and(|devid| !fs.volume().devices().lagging().contains(&devid)) {
            return Err(format!("device {lagging:?} is taken for one that has all that the others have"));
        }
        let failed = |error: ubtrfs::Error| format!("mending failed: {}", error.chain());
        if random.below(2) == 0 {
            // The mount ends or crashes while a device is brought up.
            match fs.scrubber().catch_up(&mut |_| false) {
                Ok(_) | Err(Error::Posix(Errno::CANCELED)) => {}
                Err(error) => return Err(failed(error)),
            }
            if random.below(2) == 0 {
                fs.close().map_err(failed)?;
            }
            before = recording.all_current();
            drop(fs);
            (recording, recorded, fs) = open(&before)?;
        }
        fs.scrubber().catch_up(&mut |_| true).map_err(failed)?;
        let still = fs.volume().devices().lagging();
        if !still.is_empty() {
            return Err(format!("devices {still:?} still lag when they have been brought up to the others"));
        }
        let scrub = |fs: &Filesystem| fs.scrubber().run(ScrubOptions::default(), &mut |_| true);
        let found = scrub(&fs).map_err(failed)?;
        let mut is_lost = false;
        if self.is_redundant && random.one_in(2) {
            let place = random.below(before.len() as u64) as usize;
            is_lost = lose_some(&before[place], &*recorded[place], &mut random).map_err(|error| sentence(&error))?;
            let found = scrub(&fs).map_err(failed)?;
            if found.uncorrectable() > 0 {
                return Err(format!("a scrub does not mend what device {} lost: {found:?}", place + 1));
            }
        }
        // Data without checksums is as this device has it.
        let is_exact = is_exact && !is_lost;
        let again = scrub(&fs).map_err(failed)?;
        if found.uncorrectable() > 0 || again.errors() > 0 {
            return Err(format!("a scrub does not mend everything: {found:?}, and then {again:?}"));
        }
        fs.close().map_err(|error| format!("unmounting failed: {}", error.chain()))?;
        drop(fs);
        let mended = recording.all_current();
        all_copies_are_right(&mended)?;
        let mut lost = if self.is_redundant { 0..mended.len() } else { 0..0 };
        lost.try_for_each(|lost| shows_without(self.judge, &mended, lost, model, is_exact))
    }
}

/// Makes a device lose some of the writes since `before`, except for superblocks. Returns whether
/// there were any.
fn lose_some(before: &OverlayDevice, now: &dyn Device, random: &mut Random) -> std::io::Result<bool> {
    const PAGE: usize = 4096;
    const PART: usize = 1 << 20;
    let (mut then, mut found, mut is_any) = (vec![0; PART], vec![0; PART], false);
    for start in (0..before.size()).step_by(PART) {
        let len = PART.min((before.size() - start) as usize);
        before.read_at(Physical(start), &mut then[..len])?;
        now.read_at(Physical(start), &mut found[..len])?;
        for (number, (then, found)) in then[..len].chunks(PAGE).zip(found[..len].chunks(PAGE)).enumerate() {
            let at = Physical(start + (number * PAGE) as u64);
            if then != found && !SUPERBLOCK_COPIES.contains(&at) && random.one_in(2) {
                let data = SharedBuffer::from(then.to_vec());
                now.submit(vec![DeviceWrite { at, data }]).wait()?;
                is_any = true;
            }
        }
    }
    Ok(is_any)
}

/// Checks all copies, and asserts that there is no fault.
fn all_copies_are_right(devices: &[OverlayDevice]) -> Result<(), String> {
    let options = ubtrfs_check::Options { keep: 6, ..ubtrfs_check::Options::default() };
    let report = ubtrfs_check::check(&forks(devices), &options)
        .map_err(|error| format!("check failed: {}", sentence(&error)))?;
    let listed: Vec<String> = report.faults.iter().chain(&report.warnings).map(ToString::to_string).collect();
    if !listed.is_empty() || !report.is_clean() {
        return Err(format!(
            "check found {} faults after all was mended:
  {}",
            report.fault_count,
            listed.join(
                "
  "
            )
        ));
    }
    Ok(())
}

/// Checks that the volume shows the same without this device; with `is_exact`, also data without
/// checksums.
fn shows_without(
    judge: &Judge,
    devices: &[OverlayDevice],
    lost: usize,
    model: &Model,
    is_exact: bool,
) -> Result<(), String> {
    let rest: Vec<OverlayDevice> = (0..devices.len()).filter(|at| *at != lost).map(|at| devices[at].fork()).collect();
    let options = Options { read_only: true, ..judge.options.clone() };
    let shown = look(&*open(forks(&rest), options)?)?;
    let difference = if is_exact { model.difference(&shown) } else { model.difference_except_nodatacow(&shown) };
    match difference {
        Some(difference) => Err(format!("without device {}: {difference}", lost + 1)),
        None => Ok(()),
    }
}
