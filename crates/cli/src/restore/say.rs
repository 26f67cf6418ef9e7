//! What a restore prints.

use std::io::{self, Write};

use crate::failure::{Failure, Result};

/// Prints to the standard output.
pub fn say(text: &str) -> Result<()> {
    io::stdout().write_all(text.as_bytes()).map_err(|error| Failure::output(&error))
}
