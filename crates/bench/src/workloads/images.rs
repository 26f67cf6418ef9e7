//! Makes, fills and empties images without a mount, in comparison with mkfs.btrfs and tar.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ubtrfs_random::Rng;

use super::case::{Case, Scale};
use crate::cleanup;
use crate::failure::{Failure, Result};
use crate::peers::Mounted;
use crate::process::{find, run, tool};
use crate::samples::{Better, Measured};

/// Files of a directory.
const FILES: u32 = 50;
/// The limit of a step's time, after which it counts as hanging.
const LIMIT: Duration = Duration::from_secs(600);

pub fn cases(scale: Scale) -> Vec<Case> {
    let files = scale.pick(200, 20_000, 100_000, 100_000);
    let run = move |mounted: &mut Mounted, measured: &mut Measured| measure(mounted, measured, files);
    let title = format!("a tree of {files} files: images and archives of it, without a mount");
    let case = Case::new("images", format!("images-{files}"), title, "mkfs --rootdir", run);
    vec![case.programs(&["tar", "mkfs.btrfs", "sync", "rm"]).on_own_volume()]
}

/// Measures each step after all writes of the last one are durable.
fn measure(mounted: &mut Mounted, measured: &mut Measured, files: u32) -> Result<()> {
    let yard = mounted.directory().parent().unwrap_or(Path::new("/")).to_owned();
    let tree = tree(&yard, files)?;
    let own = ubtrfs_testkit::need::ubtrfs_binary();
    let own = own.ok_or_else(|| Failure::Impossible("the ubtrfs binary is missing".into()))?;
    let work = yard.join("work");
    fs::create_dir(&work)?;
    let at = |name: &str| work.join(name);
    let place = |image: &str, path: &str| format!("{}:{path}", at(image).display());
    let mut step = |name: &str, command: &mut Command| -> Result<()> {
        run(&mut Command::new(find("sync").unwrap_or_else(|| PathBuf::from("sync"))), LIMIT)?;
        cleanup::check()?;
        let start = Instant::now();
        run(command, LIMIT)?;
        measured.add(name, start.elapsed().as_secs_f64() * 1e3, "ms", Better::Lower);
        Ok(())
    };
    let ubtrfs = |words: &[&str]| {
        let mut command = Command::new(&own);
        command.args(words);
        command
    };
    step("mkfs --rootdir", ubtrfs(&["mkfs", "--rootdir"]).arg(&tree).arg(at("made")))?;
    for name in ["mkfs.btrfs", "copied", "imported"] {
        File::create(at(name))?.set_len(8 << 30)?;
    }
    step("mkfs.btrfs --rootdir", tool("mkfs.btrfs")?.args(["-q", "--rootdir"]).arg(&tree).arg(at("mkfs.btrfs")))?;
    step("tar -c", tool("tar")?.args(["-c", "-f"]).arg(at("tar")).arg("-C").arg(&tree).arg("."))?;
    for name in ["copied", "imported"] {
        run(ubtrfs(&["mkfs"]).arg(at(name)), LIMIT)?;
    }
    step("cp -a in", ubtrfs(&["cp", "-a"]).arg(&tree).arg(place("copied", "")))?;
    step("import", ubtrfs(&["import"]).arg(at("imported")).arg(at("tar")))?;
    let mut export = Command::new("sh");
    export.args(["-c", "exec \"$1\" export \"$2\" > \"$3\"", "sh"]).arg(&own).arg(at("made")).arg(at("exported"));
    step("export", &mut export)?;
    step("cp -a out", ubtrfs(&["cp", "-a"]).arg(place("made", "/")).arg(at("out")))?;
    step("cp -a of the host", Command::new("cp").arg("-a").arg(&tree).arg(at("host")))?;
    run(tool("rm")?.arg("-rf").arg(&work), LIMIT)?;
    Ok(())
}

/// Makes a tree of small files, once in a run.
fn tree(yard: &Path, files: u32) -> Result<PathBuf> {
    let (tree, new) = (yard.join(format!("tree-{files}")), yard.join("new"));
    if tree.exists() {
        return Ok(tree);
    }
    let mut random = Rng::new(1);
    for number in 0..files {
        let dir = new.join(format!("part{}/dir{}", number / FILES / 20, number / FILES));
        if number % FILES == 0 {
            cleanup::check()?;
            fs::create_dir_all(&dir)?;
        }
        // Most files are small, and few are large.
        let size = 100 << (random.next_u64() % 9);
        let content: Vec<u8> = (0..size).map(|_| random.next_u64() as u8 & 63).collect();
        fs::write(dir.join(format!("file{number}")), content)?;
    }
    fs::rename(new, &tree)?;
    Ok(tree)
}
