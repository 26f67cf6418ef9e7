//! The bench command: the same workloads on ubtrfs, on the kernel's file systems, and on the bound of FUSE, side by side in one
//! run. `docs/bench.md` explains what is measured and how to read it.

#![allow(clippy::cast_precision_loss, reason = "figures to look at")]

mod args;
mod calls;
mod cleanup;
mod failure;
mod histogram;
mod machine;
mod meter;
mod null;
mod peers;
mod process;
mod runner;
mod samples;
mod stats;
mod table;
mod workloads;

use std::process::ExitCode;

use clap::Parser;

use args::{Arguments, Command};
use failure::{Failure, Result};

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
            println!("\nsamples and all it takes to repeat them: {}", plan.out.display());
            Ok(())
        }
        Command::List => {
            args::list();
            Ok(())
        }
        Command::Null { backing, directory } => null::serve(backing, directory),
        Command::Hold { directory, count } => workloads::unlinked::hold(directory, *count),
    }
}
