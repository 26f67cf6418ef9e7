//! Says what is wrong with a volume, and what to do about it, where that is known.

use std::path::PathBuf;

use ubtrfs_format::Superblock;
use ubtrfs_format::items::{BlockGroupFlags, ChunkItem, DevItem, Stripe, Timespec};
use ubtrfs_volume::{Error, Half, Volume};

use crate::args::Window;
use crate::failure::Failure;
use crate::looking::{part_to_look_at, superblock_on};
use crate::other_contents::instead_of_btrfs;
use crate::remedy::{OF_DAMAGE, about_device};
use crate::show;
use crate::size::show_size;

/// Describes what is wrong with the volume in this part of the devices, and what to do about it.
pub fn about_volume_within(paths: &[PathBuf], window: Window, error: &Error) -> Failure {
    let advice = match (error, paths) {
        (Error::PrimarySuperblock { .. }, _) => Some(format!(
            "; 'ubtrfs rescue super-recover{}' puts it back, and a mount with -o ro,rescue=usebackuproot{} reads the \
             volume as it is",
            window.as_options(),
            window.as_mount_options()
        )),
        // The start of the whole device does not describe the contents of one part of it.
        (Error::NotBtrfs, [path]) if window.is_whole() => {
            instead_of_btrfs(path, window.of_mount).map(|instead| format!("; {instead}"))
        }
        (Error::NotBtrfs, [_, _, ..]) if window.of_mount => Some(
            "; with -o degraded the volume is mounted without this device, as far as it has all data on the others"
                .into(),
        ),
        (Error::MissingDevices { .. }, _) if window.of_mount => Some(
            "; device=PATH names one, and with -o degraded the volume is mounted without them, as far as it has all data \
             on the others (or ro,degraded)"
                .into(),
        ),
        (Error::MissingDevices { .. }, _) => Some("; 'ubtrfs info' describes what is there".into()),
        (Error::Seed, _) if window.of_mount => Some("; mount it with -o ro".into()),
        (Error::ForeignDevice { .. }, _) => Some(those(paths, window, |_| true)),
        (Error::Apart(halves), _) => Some(about_halves(halves, paths, window)),
        (Error::DuplicateDevice(devid) | Error::WrongDevice(devid) | Error::UnlistedDevice(devid), _) => {
            Some(those(paths, window, |superblock| superblock.dev_item.devid == *devid))
        }
        (Error::Node { .. } | Error::ChunkTree { .. } | Error::ChunkItem { .. } | Error::Unmapped { .. }, _) => {
            Some(OF_DAMAGE.into())
        }
        _ => None,
    };
    let about = match error {
        // These errors do not name the device whose superblock is meant.
        Error::PrimarySuperblock { .. } | Error::Superblock(_) | Error::NotBtrfs => {
            match &*without_superblock(paths, window) {
                [path, others @ ..] => {
                    Failure::about(path.display(), error).map_sentence(|sentence| sentence + &nor_on(others))
                }
                [] => about_volume(paths, error),
            }
        }
        _ => about_volume(paths, error),
    };
    about.map_sentence(|sentence| sentence + &advice.unwrap_or_default())
}

/// Returns those of several devices that have no good primary superblock.
fn without_superblock(paths: &[PathBuf], window: Window) -> Vec<&PathBuf> {
    let is_without =
        |path: &&PathBuf| part_to_look_at(path, window).is_some_and(|device| !Volume::has_primary_superblock(&*device));
    paths.iter().filter(is_without).collect()
}

/// Returns the end of a sentence which says that other devices lack a good superblock, too.
fn nor_on(others: &[&PathBuf]) -> String {
    let others: Vec<String> = others.iter().map(|path| path.display().to_string()).collect();
    if others.is_empty() { String::new() } else { format!("; nor is there a good one on {}", others.join(", ")) }
}

/// Describes two groups of devices that were written without each other: where they are, since when
/// they are apart, and the commands that make one group current.
fn about_halves(halves: &[Half; 2], paths: &[PathBuf], window: Window) -> String {
    let describe = |half: &Half| {
        let is_it = |path: &&PathBuf| superblock_on(path, window).is_some_and(|own| own.dev_item.devid == half.devid);
        let path = paths.iter().find(is_it).map_or_else(String::new, |path| path.display().to_string());
        let since = half.since.map(|(_, sec)| format!(" since {}", show::seconds(Timespec { sec, nsec: 0 })));
        format!("device {} is {path}{}", half.devid, since.unwrap_or_default())
    };
    let [one, other] = halves;
    format!(
        " ({}; {}); 'ubtrfs mount --discard-device {}' takes what device {} has and makes the other one as it is, \
         --discard-device {} takes what device {} has; -o ro shows the first of them",
        describe(one),
        describe(other),
        other.devid,
        one.devid,
        one.devid,
        other.devid
    )
}

/// Returns the end of a sentence that names the devices whose superblock is meant, each with its
/// volume.
fn those(paths: &[PathBuf], window: Window, is_meant: impl Fn(&Superblock) -> bool) -> String {
    let describe = |path: &PathBuf| {
        let superblock = superblock_on(path, window).filter(|superblock| is_meant(superblock))?;
        Some(format!("{} is of {}", path.display(), superblock.fsid))
    };
    let all: Vec<String> = paths.iter().filter_map(describe).collect();
    format!(" ({})", all.join(", "))
}

/// Describes what is wrong with the volume on these devices.
pub fn about_volume(paths: &[PathBuf], error: &Error) -> Failure {
    match (paths, error) {
        // These errors name the device themselves.
        (_, Error::Open { .. } | Error::Held { .. } | Error::Attached { .. } | Error::NotADevice { .. }) | ([], _) => {
            about_device(error)
        }
        ([path, ..], _) => Failure::about(path.display(), error),
    }
}

/// Says which devices of a volume are missing, and how much can't be read without them. Returns
/// `None` if none is missing.
pub fn what_is_missing(volume: &Volume) -> Option<String> {
    let missing = volume.devices().missing();
    let numbers: Vec<String> = missing.iter().map(|item| item.devid.to_string()).collect();
    let which = match &*numbers {
        [] => return None,
        [one] => format!("device {one} of the volume is missing"),
        several => format!("devices {} of the volume are missing", several.join(", ")),
    };
    // Of data and of everything else: the bytes of all chunks, and of those that are incomplete.
    let mut sizes = [(0_u64, 0_u64); 2];
    for (_, chunk) in volume.chunk_map().all() {
        let (all, lost) = &mut sizes[usize::from(!chunk.flags.contains(BlockGroupFlags::DATA))];
        *all = all.saturating_add(chunk.length);
        if !is_complete(&chunk, &missing) {
            *lost = lost.saturating_add(chunk.length);
        }
    }
    let of = |(all, lost): (u64, u64), what| {
        (lost > 0).then(|| format!("{} of {} for {what}", show_size(lost), show_size(all)))
    };
    let lost: Vec<String> = [of(sizes[0], "data"), of(sizes[1], "metadata")].into_iter().flatten().collect();
    Some(if lost.is_empty() {
        format!("{which}; everything is on the others, too")
    } else {
        format!(
            "{which}, and without {} {} can't be read, or only in part; name its device, too, if you have it",
            if missing.len() == 1 { "it" } else { "them" },
            lost.join(" and ")
        )
    })
}

/// Whether all of a chunk can be read from the devices that are present.
pub fn is_complete(chunk: &ChunkItem, missing: &[DevItem]) -> bool {
    let is_lost = |stripe: &Stripe| missing.iter().any(|item| item.devid == stripe.devid);
    let Some(raid) = chunk.flags.raid() else { return false };
    if raid.parities > 0 {
        return chunk.stripes.iter().filter(|stripe| is_lost(stripe)).count() as u64 <= raid.parities;
    }
    let mut mirrors = chunk.stripes.chunks(raid.copies.max(1) as usize);
    mirrors.all(|mirrors| !mirrors.iter().all(is_lost))
}
