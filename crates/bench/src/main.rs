//! The bench command runs the same workloads on ubtrfs, on the kernel's file systems, and on the
//! bound of FUSE, in turn within one run. `docs/bench.md` explains what is measured and how to read
//! it.

#![allow(clippy::cast_precision_loss, reason = "figures to look at")]

mod args;
mod calls;
mod cleanup;
mod comparison;
mod failure;
mod guard;
mod histogram;
mod machine;
mod memory;
mod meter;
mod null;
mod peers;
mod plot;
mod process;
mod profile;
mod report;
mod runner;
mod samples;
mod stats;
mod subvolume_calls;
mod switch;
mod table;
mod throttle;
mod touches;
mod workloads;

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use args::{Arguments, Command};
use failure::{Failure, Result};
use samples::Results;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match perform(&arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Interrupted) => {
            eprintln!("ubtrfs-bench: interrupted");
            ExitCode::from(130)
        }
        Err(failure) => {
            eprintln!("ubtrfs-bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn perform(command: &Command) -> Result<()> {
    match command {
        Command::Run(run) => {
            let plan = run.plan()?;
            let results = runner::run(&plan)?;
            print!("{}", table::text(&results));
            if let Some(dir) = &run.plots {
                draw_plots(&results, dir)?;
            }
            println!("\nsamples and all it takes to repeat them: {}", plan.out.display());
            Ok(())
        }
        Command::Report(what) => report(what),
        Command::Profile(what) => profile::run(what),
        Command::Guard(what) => guard::run(what),
        Command::Touches(what) => touches::run(what),
        Command::List => {
            args::list();
            Ok(())
        }
        Command::Null { backing, directory } => null::serve(backing, directory),
        Command::Hold { directory, count } => workloads::unlinked::hold(directory, *count),
    }
}

fn report(what: &args::Report) -> Result<()> {
    let last = what.results.last().ok_or_else(|| Failure::new("no result file"))?;
    let new = Results::load(last)?;
    if let [old, _] = what.results.as_slice() {
        print!("{}", report::compare(&Results::load(old)?, &new));
    } else if let Some(page) = &what.into {
        report::put(page, &report::markdown(&new))?;
    } else if what.all {
        print!("{}", table::all(&new));
    } else if what.markdown {
        print!("{}", report::markdown(&new));
    } else {
        print!("{}", table::text(&new));
    }
    what.plots.as_ref().map_or(Ok(()), |dir| draw_plots(&new, dir))
}

fn draw_plots(results: &Results, dir: &Path) -> Result<()> {
    for path in plot::draw(results, dir)? {
        eprintln!("{}", path.display());
    }
    Ok(())
}
