//! What commands print.

use std::io::{self, Write};

use serde::Serialize;

use crate::failure::{Failure, Result};

/// Prints to the standard output.
pub fn say(text: &str) -> Result<()> {
    io::stdout().write_all(text.as_bytes()).map_err(|error| Failure::output(&error))
}

/// What `--json` prints.
pub fn as_json(what: &impl Serialize) -> Result<String> {
    serde_json::to_string_pretty(what).map(|text| text + "\n").map_err(|error| Failure::of(&error))
}
