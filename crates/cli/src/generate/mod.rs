//! Files that `make install` and packages install with the program: manual pages and completions
//! for shells.

mod manual;
mod markdown;
pub mod values;

use std::fs;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::{Arguments, Generate};
use crate::failure::Failure;

/// The supported shells, each with its directory of completions under `share`.
const SHELLS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions"),
    (Shell::Zsh, "zsh/site-functions"),
    (Shell::Fish, "fish/vendor_completions.d"),
];

/// Writes manual pages and completions below a directory with the structure of `share`.
pub fn run(arguments: &Generate) -> Result<(), Failure> {
    let share = &arguments.directory;
    let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", share.display()));
    write_completions(share).map_err(failed)?;
    write_pages(share).map_err(failed)
}

fn write_completions(share: &Path) -> std::io::Result<()> {
    for (shell, directory) in SHELLS {
        let directory = share.join(directory);
        fs::create_dir_all(&directory)?;
        clap_complete::generate_to(shell, &mut values::with_values(Arguments::command()), "ubtrfs", &directory)?;
    }
    // Debian's bash searches for a file with the name of the command.
    let bash = share.join(SHELLS[0].1);
    let generated = fs::read_to_string(bash.join("ubtrfs.bash"))?;
    fs::write(bash.join("ubtrfs"), generated + &values::of_lists())?;
    fs::remove_file(bash.join("ubtrfs.bash"))
}

fn write_pages(share: &Path) -> std::io::Result<()> {
    for page in manual::pages()? {
        let directory = share.join(format!("man/man{}", page.section()));
        fs::create_dir_all(&directory)?;
        fs::write(directory.join(page.name), page.roff)?;
    }
    Ok(())
}
