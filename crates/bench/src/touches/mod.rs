//! Counts the cost of each step that a changed extent or file takes through the engine:
//! instructions and cache misses, as valgrind counts and simulates them. They depend on the build
//! alone, and not on the machine or its load.

mod callgrind;
mod stages;

use std::fmt::Write;
use std::hint::black_box;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::failure::{Failure, Result};
use crate::guard::histories::{Bed, HISTORIES};
use crate::process;
use callgrind::{Cost, Costs};
use stages::{STAGES, Stages};

/// The simulated caches, which are the same on every machine: size, ways, bytes of a line.
const CACHES: [&str; 3] = ["--I1=32768,8,64", "--D1=32768,8,64", "--LL=8388608,16,64"];

/// Count the cost of each step that a changed extent or file takes through the engine.
#[derive(Debug, Args)]
pub struct Touches {
    /// Count only histories whose names contain this text.
    #[arg(default_value = "")]
    pub history: String,
    /// Keep the output of callgrind in this directory.
    #[arg(long, value_name = "DIRECTORY")]
    pub keep: Option<PathBuf>,
    /// Run the history alone, as valgrind calls the command.
    #[arg(long, hide = true)]
    pub inside: bool,
}

/// Prints the tables.
pub fn run(what: &Touches) -> Result<()> {
    if what.inside {
        return run_inside(&what.history);
    }
    let own = tempfile::tempdir()?;
    let dir = what.keep.as_deref().unwrap_or(own.path());
    for stages in STAGES.iter().filter(|stages| stages.history.contains(&what.history)) {
        let profile = count(stages, dir)?;
        print!("{}", table(stages, &callgrind::inclusive(&profile))?);
    }
    Ok(())
}

/// Runs a history under valgrind. Returns the profile.
fn count(stages: &Stages, dir: &Path) -> Result<String> {
    let out = dir.join(stages.unit.replace(' ', "-"));
    let mut valgrind = process::tool("valgrind")?;
    valgrind.args(["--tool=callgrind", "--cache-sim=yes"]).args(CACHES);
    valgrind.args(["--zero-before=*counting_begins*", "--dump-before=*counting_ends*"]);
    valgrind.arg(format!("--callgrind-out-file={}", out.display()));
    valgrind.arg(std::env::current_exe()?).args(["touches", "--inside", stages.history]);
    process::run(&mut valgrind, 3 * process::SOON)?;
    Ok(std::fs::read_to_string(out.with_extension("1"))?)
}

fn run_inside(name: &str) -> Result<()> {
    let history = HISTORIES.iter().find(|history| history.name == name);
    let history = history.ok_or_else(|| Failure::new(format!("no history is called {name}")))?;
    let mut bed = Bed::new()?;
    (history.run)(&mut bed, &mut |_| counting_begins())?;
    counting_ends();
    // The rest is not counted, and to leave the volume as after a crash is the fastest end.
    std::process::exit(0)
}

/// Valgrind looks for the name of this function, and for that of the next.
#[inline(never)]
fn counting_begins() {
    black_box(0);
}

#[inline(never)]
fn counting_ends() {
    black_box(1);
}

/// Returns the table of a history: the costs of each stage, per unit.
fn table(stages: &Stages, costs: &Costs) -> Result<String> {
    let mut text = format!(
        "\n{}\n\n| for one {} | instructions | L1 misses | LL misses |\n|---|---|---|---|\n",
        stages.history, stages.unit
    );
    let mut is_empty = true;
    for stage in stages.iter() {
        let Some(Cost { instructions, first_misses, last_misses }) = stage.cost(costs) else { continue };
        let each = |count: u64| count as f64 / stages.count as f64;
        let indent = "– ".repeat(stage.depth);
        let (instructions, first, last) = (each(instructions), each(first_misses), each(last_misses));
        let _ = writeln!(text, "| {indent}{} | {instructions:.0} | {first:.1} | {last:.1} |", stage.name);
        is_empty = false;
    }
    if is_empty {
        return Err(Failure::Impossible("valgrind found no names: build with --profile profiling".to_owned()));
    }
    Ok(text)
}
