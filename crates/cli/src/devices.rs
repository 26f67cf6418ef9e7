//! `ubtrfs device` and `ubtrfs filesystem df|usage`: show the devices of a volume, how they are
//! used and how often they failed. The text resembles that of btrfs-progs.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use ubtrfs::{Filesystem, Options};
use ubtrfs_format::{DeviceId, TreeId};
use ubtrfs_volume::{DeviceErrors, OpenOptions, Volume};

use crate::add;
use crate::args::device::{DeviceArguments, DeviceCommand, DeviceStats, VolumePlace};
use crate::control;
use crate::device::{about_volume_within, open_for_writing};
use crate::failure::{Failure, Result};
use crate::info::Groups;
use crate::ioctls::{Mounted, about_mount};
use crate::json::{Name, as_json};
use crate::output::say;
use crate::place::mount_of;
use crate::remove;
use crate::show;
use crate::trees::Trees;
use crate::usage::{DeviceUsage, Glance, MISSING, Usage};

/// The kinds of failures of a device, in the order of its counters, with their names in
/// btrfs-progs.
const FAILURES: [&str; 5] = ["write_io_errs", "read_io_errs", "flush_io_errs", "corruption_errs", "generation_errs"];

/// The text about a device that lacks something that the others have.
const LAGS: &str = "lacks something that the others have; 'ubtrfs scrub start' brings it up to them";

/// How often a device failed.
#[derive(Debug, Serialize)]
struct Failures {
    id: u64,
    path: Name,
    write_io_errs: u64,
    read_io_errs: u64,
    flush_io_errs: u64,
    corruption_errs: u64,
    generation_errs: u64,
    /// The device lacks something that the others have.
    lags: bool,
}

impl Failures {
    fn new(id: u64, path: Name, lags: bool, counts: [u64; 5]) -> Self {
        let [write_io_errs, read_io_errs, flush_io_errs, corruption_errs, generation_errs] = counts;
        Self { id, path, write_io_errs, read_io_errs, flush_io_errs, corruption_errs, generation_errs, lags }
    }

    fn counts(&self) -> [u64; 5] {
        [self.write_io_errs, self.read_io_errs, self.flush_io_errs, self.corruption_errs, self.generation_errs]
    }
}

/// `ubtrfs device`
pub fn run(arguments: &DeviceArguments) -> Result<()> {
    match &arguments.what {
        DeviceCommand::Usage(place) => show(place, devices_as_text),
        DeviceCommand::Stats(arguments) => stats(arguments),
        DeviceCommand::Remove(arguments) => remove::run(arguments),
        DeviceCommand::Add(arguments) => add::run(arguments),
        DeviceCommand::Replace(arguments) => crate::replace::run(arguments),
    }
}

/// `ubtrfs filesystem df`
pub fn df(place: &VolumePlace) -> Result<()> {
    show(place, groups_as_text)
}

/// `ubtrfs filesystem usage`
pub fn usage(place: &VolumePlace) -> Result<()> {
    show(place, as_text)
}

fn show(place: &VolumePlace, as_text: fn(&Usage) -> String) -> Result<()> {
    let usage = Glance::look(&place.places, place.window, Glance::usage)?;
    say(&if place.json { as_json(&usage)? } else { as_text(&usage) });
    Ok(())
}

fn stats(arguments: &DeviceStats) -> Result<()> {
    let place = &arguments.place;
    let all = if let Some(directory) = mount_of(&place.places) {
        of_mount(directory, arguments.reset)?
    } else {
        let all = of_devices(place)?;
        if arguments.reset {
            reset_devices(place)?;
        }
        all
    };
    let mut text = String::new();
    for failures in &all {
        for (name, count) in FAILURES.iter().zip(failures.counts()) {
            let _ = writeln!(text, "[{}].{name:<16} {count}", show::bytes(&failures.path.0));
        }
        if failures.lags {
            let _ = writeln!(text, "[{}] {LAGS}", show::bytes(&failures.path.0));
        }
    }
    say(&if place.json { as_json(&all)? } else { text });
    let failed = all.iter().any(|failures| failures.counts() != [0; 5]);
    if arguments.check && failed { Err(Failure::Said(64)) } else { Ok(()) }
}

fn of_mount(directory: &Path, reset: bool) -> Result<Vec<Failures>> {
    let failed = |errno| about_mount(directory.display(), errno);
    let mounted = Mounted::open(directory)?;
    // The kernel's driver doesn't know lagging devices.
    let lagging = control::report(directory).map(|report| report.lagging_devices).unwrap_or_default();
    let mut all = Vec::new();
    for id in mounted.device_numbers().map_err(failed)? {
        let counts = mounted.device_errors(id, reset).map_err(failed)?;
        let path = Some(mounted.device_path(id).map_err(failed)?).filter(|path| !path.is_empty());
        all.push(Failures::new(id, Name(path.unwrap_or_else(|| MISSING.into()).into()), lagging.contains(&id), counts));
    }
    Ok(all)
}

fn of_devices(place: &VolumePlace) -> Result<Vec<Failures>> {
    Glance::look(&place.places, place.window, failures)
}

fn failures(glance: &Glance) -> Result<Vec<Failures>> {
    let trees = Trees::new(&glance.volume);
    let item = trees.root_item(TreeId::DEV)?;
    let tree = item.map(|item| trees.described(TreeId::DEV, &item));
    let mut all = Vec::new();
    for device in glance.volume.devices().items() {
        let key = DeviceErrors::key(device.devid);
        let stored = tree.as_ref().map(|tree| tree.get(&key)).transpose().map_err(|error| Failure::of(&error))?;
        let errors = stored.flatten().map(|item| DeviceErrors::parse(&item)).unwrap_or_default();
        let devid = device.devid.0;
        all.push(Failures::new(devid, glance.path(devid), glance.lags(devid), errors.counts));
    }
    Ok(all)
}

/// Sets the counters to zero and commits.
fn reset_devices(place: &VolumePlace) -> Result<()> {
    let (paths, window) = (&place.places, place.window);
    let writing = open_for_writing(paths, window)?;
    let volume = Volume::open(writing.devices, OpenOptions { read_only: false });
    let volume = volume.map_err(|error| about_volume_within(paths, window, &error))?;
    let failed = |error: ubtrfs::Error| Failure::of(&error);
    let options = Options { background_commits: false, catches_up_first: true, ..Options::default() };
    let fs = Filesystem::open(Arc::new(volume), options).map_err(failed)?;
    let numbers: Vec<DeviceId> = fs.volume().devices().items().iter().map(|device| device.devid).collect();
    numbers.into_iter().try_for_each(|devid| fs.reset_device_errors(devid)).map_err(failed)?;
    // Sets the label to its present value: there is no commit without a change.
    fs.set_label(&fs.label()).map_err(failed)?;
    fs.close().map_err(failed)
}

/// Returns a size as btrfs-progs show it.
fn size(bytes: u64) -> String {
    crate::size::show_size(bytes).replace(" B", ".00B").replace(' ', "")
}

fn groups_as_text(usage: &Usage) -> String {
    let mut text = String::new();
    for Groups { kind, profile, total_bytes, used_bytes, .. } in &usage.groups {
        let (total, used) = (size(*total_bytes), size(*used_bytes));
        let _ = writeln!(text, "{kind}, {profile}: total={total}, used={used}");
    }
    text
}

fn devices_as_text(usage: &Usage) -> String {
    let mut text = String::new();
    for device in &usage.devices {
        let lags = if device.lags { format!(", {LAGS}") } else { String::new() };
        let _ = writeln!(text, "{}, ID: {}{lags}", shown_path(device), device.id);
        let mut lines =
            vec![("Device size:".to_owned(), device.total_bytes), ("Device slack:".to_owned(), device.slack_bytes)];
        let chunks = device.chunks.iter();
        lines.extend(chunks.map(|chunks| (format!("{},{}:", chunks.kind, chunks.profile), chunks.bytes)));
        lines.push(("Unallocated:".to_owned(), device.unallocated_bytes));
        for (name, bytes) in lines {
            let _ = writeln!(text, "   {name:<20}{:>16}", size(bytes));
        }
        text.push('\n');
    }
    text
}

fn as_text(usage: &Usage) -> String {
    let mut text = "Overall:\n".to_owned();
    let sum = |of: fn(&DeviceUsage) -> u64| usage.devices.iter().map(of).sum::<u64>();
    let missing = |device: &DeviceUsage| if device.path.0.is_empty() { device.total_bytes } else { 0 };
    let (total, unallocated) = (sum(|device| device.total_bytes), sum(|device| device.unallocated_bytes));
    for (name, bytes) in [
        ("Device size:", total),
        ("Device allocated:", total.saturating_sub(unallocated)),
        ("Device unallocated:", unallocated),
        ("Device missing:", sum(missing)),
        ("Device slack:", sum(|device| device.slack_bytes)),
    ] {
        let _ = writeln!(text, "    {name:<24}{:>16}", size(bytes));
    }
    for group in &usage.groups {
        let all = u128::from(group.total_bytes.max(1));
        let hundredths = (u128::from(group.used_bytes) * 10_000 + all / 2) / all;
        let percent = format!("{}.{:02}", hundredths / 100, hundredths % 100);
        let (total, used) = (size(group.total_bytes), size(group.used_bytes));
        let _ = writeln!(text, "\n{},{}: Size:{total}, Used:{used} ({percent}%)", group.kind, group.profile);
        for device in &usage.devices {
            let own = device.chunks.iter().find(|own| (&own.kind, &own.profile) == (&group.kind, &group.profile));
            if let Some(own) = own {
                let _ = writeln!(text, "   {:<16}{:>16}", shown_path(device), size(own.bytes));
            }
        }
    }
    text.push_str("\nUnallocated:\n");
    for device in &usage.devices {
        let _ = writeln!(text, "   {:<16}{:>16}", shown_path(device), size(device.unallocated_bytes));
    }
    text
}

fn shown_path(device: &DeviceUsage) -> String {
    if device.path.0.is_empty() { MISSING.into() } else { show::bytes(&device.path.0) }
}
