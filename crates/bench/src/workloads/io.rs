//! Sequential and random reads and writes without fsync.

use super::case::{Case, Scale};
use super::fio::{Figures, Job, fio};
use crate::calls::Calls;
use crate::cleanup;
use crate::failure::Result;
use crate::peers::Mounted;
use crate::samples::Measured;

/// The file that fio's only job uses.
const FILE: &str = "job.0.0";
const PIECE: usize = 1 << 20;

pub fn cases(scale: Scale) -> Vec<Case> {
    let seconds = scale.pick(1, 5, 10, 30);
    let size = scale.pick(16 << 20, 256 << 20, 1 << 30, 2 << 30);
    let kinds = [
        ("write", "1m", "sequential write, 1 MiB", "write"),
        ("randwrite", "4k", "random write, 4 KiB", "write"),
        ("read", "1m", "sequential read, 1 MiB", "read"),
        ("randread", "4k", "random read, 4 KiB", "read"),
    ];
    let case = |(kind, block, title, side): (&'static str, &'static str, &str, &'static str)| {
        let more: &[&str] = if side == "write" { &["--end_fsync=1"] } else { &[] };
        let job = Job { kind, block, fsync: 0, jobs: 1, seconds, size, more };
        let run = move |mounted: &mut Mounted, measured: &mut Measured| measure(mounted, measured, &job, side);
        Case::new("io", format!("io-{kind}"), title.into(), "bandwidth", run).programs(&["fio"])
    };
    kinds.into_iter().map(case).collect()
}

fn measure(mounted: &mut Mounted, measured: &mut Measured, job: &Job, side: &'static str) -> Result<()> {
    if side == "read" {
        prepare(mounted, job.size)?;
    }
    let (printed, usage) = fio(mounted, job)?;
    let figures = Figures::of(&printed, side)?;
    figures.add(measured);
    usage.per_operation(measured, figures.operations);
    if side == "write" {
        usage.amplification(measured, figures.bytes);
    }
    Ok(())
}

/// Writes the file that is read later, and mounts again, so that the file system's caches have
/// nothing of it.
pub(super) fn prepare(mounted: &mut Mounted, size: u64) -> Result<()> {
    write(mounted, FILE, size)?;
    if mounted.keeps() {
        mounted.unmount()?;
        mounted.forget_cached()?;
        mounted.mount()?;
    }
    Ok(())
}

/// Writes a file of pieces that all differ.
pub(super) fn write(mounted: &Mounted, name: &str, size: u64) -> Result<()> {
    let calls = Calls::of(mounted);
    let root = calls.root()?;
    let file = calls.create(&root, name)?;
    let mut piece = vec![0; PIECE];
    for number in 0..size / PIECE as u64 {
        // No two pieces are equal.
        for (at, word) in piece.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(
                &(number * PIECE as u64 + at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes(),
            );
        }
        calls.write(&file, number * PIECE as u64, &piece)?;
        cleanup::check()?;
    }
    calls.close(file);
    calls.close(root);
    Ok(())
}
