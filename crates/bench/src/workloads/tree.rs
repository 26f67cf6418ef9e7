//! A source tree that is unpacked, checked out by git, and removed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use ubtrfs_random::Rng;

use super::case::{Case, Scale};
use crate::cleanup;
use crate::failure::{Failure, Result};
use crate::meter::metered;
use crate::peers::Mounted;
use crate::process::{SOON, run, tool};
use crate::samples::{Better, Measured};

/// Files of a directory.
const FILES: u32 = 20;

pub fn cases(scale: Scale) -> Vec<Case> {
    let directories = scale.pick(2, 50, 250, 2500);
    let run = move |mounted: &mut Mounted, measured: &mut Measured| measure(mounted, measured, directories);
    let title = format!("a source tree of {} files: tar, git checkout, rm -rf", directories * FILES);
    let case = Case::new("tree", format!("tree-{}", directories * FILES), title, "time", run);
    vec![case.programs(&["tar", "git", "rm"])]
}

fn measure(mounted: &mut Mounted, measured: &mut Measured, directories: u32) -> Result<()> {
    let yard = mounted.directory().parent().unwrap_or(Path::new("/")).to_owned();
    let (archive, repository) = sources(&yard, directories)?;
    let place = mounted.directory();
    let mut clone = git();
    clone.args(["clone", "--quiet", "--shared", "--no-checkout"]).arg(&repository).arg(place.join("clone"));
    run(&mut clone, SOON)?;
    let ((), usage) = metered(mounted, || {
        let mut all = 0.0;
        let mut step = |name: &str, command: &mut Command| -> Result<()> {
            let start = Instant::now();
            run(command, SOON)?;
            let millis = start.elapsed().as_secs_f64() * 1e3;
            measured.add(name, millis, "ms", Better::Lower);
            all += millis;
            Ok(())
        };
        step("untar", tool("tar")?.arg("-xf").arg(&archive).arg("-C").arg(place))?;
        step("checkout", git().arg("-C").arg(place.join("clone")).args(["checkout", "--quiet", "HEAD"]))?;
        step("sync", Command::new(find("sync")?).arg("-f").arg(place))?;
        step("rm -rf", tool("rm")?.arg("-rf").arg(place.join("tree")).arg(place.join("clone")))?;
        measured.add("time", all, "ms", Better::Lower);
        Ok(())
    })?;
    usage.per_operation(measured, f64::from(directories * FILES));
    Ok(())
}

fn find(program: &str) -> Result<PathBuf> {
    crate::process::find(program).ok_or_else(|| Failure::Impossible(format!("the program {program} is missing")))
}

/// Returns a git command without any user's settings.
pub fn git() -> Command {
    let mut git = Command::new("git");
    git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    git.args([
        "-c",
        "user.name=bench",
        "-c",
        "user.email=bench@localhost",
        "-c",
        "gc.auto=0",
        "-c",
        "safe.directory=*",
    ]);
    git
}

/// Makes an archive and a repository of the same tree, once in a run.
pub fn sources(yard: &Path, directories: u32) -> Result<(PathBuf, PathBuf)> {
    let base = yard.join(format!("sources-{directories}"));
    let (archive, repository) = (base.join("tree.tar"), base.join("tree"));
    if archive.exists() {
        return Ok((archive, repository));
    }
    let mut random = Rng::new(1);
    for directory in 0..directories {
        cleanup::check()?;
        let dir = repository.join(format!("part{}/module{directory}", directory / 20));
        std::fs::create_dir_all(&dir)?;
        for file in 0..FILES {
            // The sizes are like those of sources: most are small, and few are large.
            let size = 200 << (random.next_u64() % 9);
            let line =
                |number: u64| format!("let value_{number} = {:x};\n", number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let mut text = String::new();
            let mut number = random.next_u64() % 1_000_000;
            while text.len() < size {
                text += &line(number);
                number += 1;
            }
            std::fs::write(dir.join(format!("file{file}.rs")), text)?;
        }
    }
    let steps: [&[&str]; 3] = [&["init", "--quiet"], &["add", "."], &["commit", "--quiet", "-m", "tree"]];
    for words in steps {
        run(git().arg("-C").arg(&repository).args(words), SOON)?;
    }
    let new = archive.with_extension("new");
    run(tool("tar")?.arg("-cf").arg(&new).arg("-C").arg(&base).args(["--exclude=.git", "tree"]), SOON)?;
    std::fs::rename(&new, &archive)?;
    Ok((archive, repository))
}
