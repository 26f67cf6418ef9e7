//! Checks the project's own rules for its sources. `ubtrfs-lint` checks all of them, `ubtrfs-lint
//! lines` only those named. Each fault is a line `file:line: message`, and the command fails if
//! there are any.
//!
//! | rule | what it requires |
//! |---|---|
//! | `lines` | comments and documents end at 100 columns |
//! | `imports` | files of a crate import each other in no circle, and modules only from below |
//! | `invariants` | each invariant is stated, asserted and tested, by its number |
//! | `words` | private words are replaced by the standard terms |
//! | `documents` | files, types and functions that documents name exist |
//! | `constants` | a constant has one definition |
//! | `names` | limits are `MAX_` and `MIN_`, and some names of types have one meaning |
//! | `devices` | each implementor of `Device` is tested for the trait's promises |
//! | `dependencies` | licences, sources and versions of third-party crates are as `deny.toml` has them |
//! | `errors` | messages of errors do not repeat their source, and the library gives no advice |
//! | `threads` | locks have ranks, and one seed can decide threads and clocks |

mod advice;
mod circles;
mod comments;
mod constants;
mod dependencies;
mod devices;
mod documents;
mod errors;
mod floors;
mod imports;
mod invariants;
mod lines;
mod message;
mod modules;
mod names;
mod parse;
mod repository;
mod scope;
mod threads;
mod words;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use repository::{Fault, Repository};

#[derive(Parser)]
#[command(about = "Checks the project's own rules for its sources")]
struct Arguments {
    /// The rules to check; all by default
    rules: Vec<Rule>,
    /// Print what the modules of a crate import from each other, instead of checking rules
    #[arg(long, value_name = "CRATE", conflicts_with = "rules")]
    graph: Option<String>,
    /// Check the commit message in a file, for the hook commit-msg of git, instead of the rules
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rules", "graph"])]
    message: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Rule {
    Lines,
    Imports,
    Invariants,
    Words,
    Documents,
    Threads,
    Constants,
    Names,
    Devices,
    Dependencies,
    Errors,
}

impl Rule {
    fn faults(self, repository: &Repository) -> Vec<Fault> {
        match self {
            Self::Lines => lines::faults(repository),
            Self::Imports => [imports::faults(repository), floors::faults(repository)].concat(),
            Self::Invariants => invariants::faults(repository),
            Self::Words => words::faults(repository),
            Self::Documents => documents::faults(repository),
            Self::Threads => threads::faults(repository),
            Self::Constants => constants::faults(repository),
            Self::Names => names::faults(repository),
            Self::Devices => devices::faults(repository),
            Self::Dependencies => dependencies::faults(repository),
            Self::Errors => [errors::faults(repository), advice::faults(repository)].concat(),
        }
    }
}

fn main() -> io::Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some(file) = arguments.message {
        let faults = message::faults(&fs::read_to_string(file)?);
        for fault in &faults {
            println!("{fault}");
        }
        return Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let repository = Repository::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))?;
    if let Some(name) = arguments.graph {
        if !repository.crates().contains(name.as_str()) {
            return Err(io::Error::other(format!("there is no crates/{name}")));
        }
        print!("{}", imports::graph(&repository, &name));
        return Ok(ExitCode::SUCCESS);
    }
    let rules = if arguments.rules.is_empty() { Rule::value_variants() } else { &arguments.rules };
    let mut faults: Vec<Fault> = rules.iter().flat_map(|rule| rule.faults(&repository)).collect();
    faults.sort();
    faults.dedup();
    for fault in &faults {
        println!("{fault}");
    }
    Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
