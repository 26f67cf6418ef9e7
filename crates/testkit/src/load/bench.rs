//! Programs that only make load: their files are checked by checksums alone.

use std::path::Path;
use std::process::{Command, Stdio};

use super::Programs;
use crate::run::command;
use ubtrfs_random::Rng;

/// Starts dbench with two clients, or fio with an fsync after every write or every sixteenth, in a
/// new directory `dir`. Returns its name.
#[track_caller]
pub fn start(programs: &Programs, dir: &Path, rng: &mut Rng) -> &'static str {
    std::fs::create_dir(dir).expect("make a directory");
    let (name, mut line) = if rng.one_in(2) { ("dbench", dbench(rng)) } else { ("fio", fio(rng)) };
    programs.start(line.current_dir(dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()));
    name
}

fn dbench(rng: &mut Rng) -> Command {
    let mut line = command("dbench", &["-c", "/usr/share/dbench/client.txt", "-t", "600", "-D", "."]);
    line.args(*rng.pick(&[&[][..], &["--fsync"], &["--fsync", "--sync-dir"]])).arg("2");
    line
}

fn fio(rng: &mut Rng) -> Command {
    let mut line = command("fio", &["--name=load", "--thread", "--size=8m", "--time_based", "--runtime=600"]);
    line.args(["--ioengine=psync", "--numjobs=2", "--fallocate=none"]);
    line.args(*rng.pick(&[&["--rw=write", "--bs=64k"], &["--rw=randwrite", "--bs=4k"], &["--rw=write", "--bs=700"]]));
    line.arg(*rng.pick(&["--fsync=1", "--fsync=16", "--fdatasync=4"]));
    line
}
