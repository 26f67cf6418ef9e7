//! What the commands say that change something.

use std::io::{self, Write};

use crate::failure::{Failure, Result};

/// Says what was done.
pub fn say(line: &str) -> Result<()> {
    writeln!(io::stdout(), "{line}").map_err(|error| Failure::output(&error))
}
