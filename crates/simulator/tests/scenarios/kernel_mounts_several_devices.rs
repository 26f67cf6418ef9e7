//! The kernel's btrfs mounts what a crash left on several devices, with all of them and without
//! one: it shows the same, and complains of nothing but the missing device.

use std::path::{Path, PathBuf};

use ubtrfs_format::{SUPERBLOCK_COPIES, SUPERBLOCK_SIZE, Superblock};
use ubtrfs_simulator::{Crashes, History, Profiles, examine_devices};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::seeds::{seeds, soaks};
use ubtrfs_volume::{Device, OverlayDevice};

use crate::kernel_mounts_crash_states::{kernel_shows, write_image};

/// Returns the generation and the log root of a device's superblock.
fn state_of(device: &OverlayDevice) -> (u64, u64) {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_at(SUPERBLOCK_COPIES[0], &mut bytes).unwrap();
    let superblock = Superblock::parse(&bytes, SUPERBLOCK_COPIES[0]).unwrap();
    (superblock.generation.0, superblock.log_root.0)
}

/// Writes the devices to files. This is done again for each mount, which changes them.
fn write_images(devices: &[OverlayDevice], paths: &[PathBuf]) {
    devices.iter().zip(paths).for_each(|(device, path)| write_image(device, path));
}

#[test]
fn the_kernel_shows_what_a_crash_left_on_several_devices() {
    require!(Need::Kernel);
    let (usual, states) = if soaks() { (70, 6) } else { (7, 2) };
    let dir = scratch_dir();
    let (mut mounted, mut without) = (0, 0);
    for seed in seeds(usual) {
        let profiles = Profiles::ALL[(seed % Profiles::ALL.len() as u64) as usize];
        let mut history = History::on_devices(seed, profiles);
        // The kernel mounts only volumes whose sectors are as large as its pages.
        history.plan.options.sector_size = 4096;
        // The kernel does not show capabilities that are noise.
        history.habits.privileges = false;
        let recorded = history.run(60).unwrap_or_else(|failure| panic!("{failure}"));
        let paths: Vec<PathBuf> = (0..profiles.devices).map(|number| dir.path().join(number.to_string())).collect();
        let paths = &paths[..];
        let mut tried = 0;
        for (point, devices) in Crashes::new(&recorded.recording, seed, 8 * states).of_all() {
            // If devices differ in the log, the kernel takes another one than we do; neither log
            // was acknowledged.
            let is_one = devices.iter().all(|device| state_of(device) == state_of(&devices[0]));
            if !is_one || tried == states {
                continue;
            }
            tried += 1;
            let what = format!("seed {seed}, {profiles:?}, crash at {point:?}");
            let found = examine_devices(&recorded.judge, &devices, point.event);
            let model = found.unwrap_or_else(|error| panic!("{what}: {error}")).model;
            let all: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
            write_images(&devices, paths);
            let complaints = kernel_shows(&all, "", &model).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(complaints, Vec::<String>::new(), "{what}");
            mounted += 1;
            if profiles.are_redundant() {
                let lost = tried % all.len();
                let rest: Vec<&Path> = (0..all.len()).filter(|at| *at != lost).map(|at| all[at]).collect();
                write_images(&devices, paths);
                let complaints = kernel_shows(&rest, "degraded", &model)
                    .unwrap_or_else(|error| panic!("{what}, without device {}: {error}", lost + 1));
                let is_of_it = |complaint: &String| complaint.contains("missing");
                assert!(complaints.iter().all(is_of_it), "{what}, without device {}: {complaints:?}", lost + 1);
                without += 1;
            }
        }
    }
    eprintln!("the kernel mounted {mounted} crash states of several devices, {without} of them without one, too");
    assert!(std::env::var_os("UBTRFS_SEEDS").is_some() || (mounted >= 10 && without >= 5), "{mounted}, {without}");
}
