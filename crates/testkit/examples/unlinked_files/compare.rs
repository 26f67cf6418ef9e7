//! The same on several file systems.

use std::path::Path;
use std::time::Duration;

use ubtrfs_testkit::kernel::LoopDevice;
use ubtrfs_testkit::progs::mkfs_btrfs;
use ubtrfs_testkit::run::{command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::subject::Subject;

use crate::close::{Measured, measure};

const SIZE: u64 = 8 << 30;
const NAMES: [&str; 3] = ["ubtrfs", "btrfs", "XFS"];

/// A new volume in `image`, and what a measurement gives there.
fn on(name: &str, image: &Path, count: usize) -> Measured {
    if name == "XFS" {
        return on_xfs(image, count);
    }
    mkfs_btrfs(image, SIZE, &[]);
    let subject = if name == "ubtrfs" { Subject::ubtrfs() } else { Subject::Kernel };
    let mount = subject.mount(&[image], "");
    let measured = measure(mount.path(), count);
    mount.unmount();
    measured
}

fn on_xfs(image: &Path, count: usize) -> Measured {
    ubtrfs_testkit::progs::blank_image(image, SIZE);
    let dir = scratch_dir();
    let device = LoopDevice::attach(image, false);
    run(command("mkfs.xfs", &["-q", "-f"]).arg(device.path())).ok();
    run(command("mount", &["-t", "xfs"]).arg(device.path()).arg(dir.path())).ok();
    let measured = measure(dir.path(), count);
    run(command("umount", &[] as &[&str]).arg(dir.path())).ok();
    measured
}

/// Compares, several rounds in turn.
pub fn compare(count: usize, rounds: usize) {
    let dir = scratch_dir();
    let mut all: Vec<[Measured; 3]> = Vec::new();
    for round in 1..=rounds {
        let found = NAMES.map(|name| {
            let image = dir.path().join(format!("{name}.img"));
            let measured = on(name, &image, count);
            std::fs::remove_file(&image).unwrap();
            measured
        });
        println!("round {round}");
        let told = |name: &&str, measured: &Measured| {
            let time: Duration = measured.closing.iter().map(|(_, _, time)| *time).sum();
            format!("{name}: closed in {time:.2?}")
        };
        println!("{}", NAMES.iter().zip(&found).map(|(name, of)| told(name, of)).collect::<Vec<_>>().join("; "));
        all.push(found);
    }
    println!("\nµs to close one, the best of {rounds}\n  open   {:>9}{:>9}{:>9}", NAMES[0], NAMES[1], NAMES[2]);
    let Some(first) = all.first() else { return };
    for (line, (open, closed, _)) in first[0].closing.iter().enumerate() {
        let best = |which: usize| all.iter().map(|round| round[which].closing[line].2).min().unwrap_or_default();
        let each = |which: usize| best(which).as_secs_f64() * 1e6 / *closed as f64;
        println!("{open:7}  {:9.2}{:9.2}{:9.2}", each(0), each(1), each(2));
    }
    for (name, measured) in NAMES.iter().zip(all.into_iter().next().into_iter().flatten()) {
        println!("\n{name}");
        measured.print();
    }
}
