//! The output of commands.

use std::io::{self, Write};

use crate::failure::{Failure, Result};
use crate::show::harmless;

/// Prints whole lines to the standard output. The last line may lack its line break.
pub fn say(text: &str) -> Result<()> {
    let line_break = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.write_all(line_break.as_bytes()));
    written.map_err(|error| Failure::output(&error))
}

/// Prints one line with names in it: characters that control a terminal are escaped.
pub fn say_line(line: &str) -> Result<()> {
    say(&harmless(line))
}
