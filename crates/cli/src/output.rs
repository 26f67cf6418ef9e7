//! What commands print.

use std::io::{self, Write};

use serde::Serialize;

use crate::failure::{Failure, Result};

/// Prints whole lines to the standard output: the last one may be given without its line break.
pub fn say(text: &str) -> Result<()> {
    let line_break = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.write_all(line_break.as_bytes()));
    written.map_err(|error| Failure::output(&error))
}

/// What `--json` prints.
pub fn as_json(what: &impl Serialize) -> Result<String> {
    serde_json::to_string_pretty(what).map(|text| text + "\n").map_err(|error| Failure::of(&error))
}
