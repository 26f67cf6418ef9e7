//! `ubtrfs stats`: the statistics of a mount's server.

use std::io::Write;

use crate::args;
use crate::control::{failure, statistics};
use crate::failure::{Failure, Result};
use crate::watch::watch;

/// `ubtrfs stats`
pub fn run(arguments: &args::Stats) -> Result<()> {
    let path = &arguments.directory;
    if arguments.watch {
        return watch(path, arguments.count);
    }
    let answer = statistics(path).map_err(|errno| failure(path, errno))?;
    let mut out = std::io::stdout().lock();
    if arguments.json {
        return out.write_all(&answer).and_then(|()| writeln!(out)).map_err(|error| Failure::output(&error));
    }
    let report: serde_json::Value =
        serde_json::from_slice(&answer).map_err(|error| Failure::about(path.display(), &error))?;
    let mut text = String::new();
    show(&mut text, "", &report);
    out.write_all(text.as_bytes()).map_err(|error| Failure::output(&error))
}

/// Lines of names and values; names of nested ones are joined by dots.
fn show(text: &mut String, prefix: &str, value: &serde_json::Value) {
    use std::fmt::Write;
    match value {
        serde_json::Value::Object(fields) => {
            for (name, value) in fields {
                let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                show(text, &name, value);
            }
        }
        serde_json::Value::Array(values) => {
            for value in values {
                show(text, prefix, value);
            }
        }
        serde_json::Value::Null => {}
        serde_json::Value::String(value) => {
            let _ = writeln!(text, "{prefix:<28} {value}");
        }
        value => {
            let _ = writeln!(text, "{prefix:<28} {value}");
        }
    }
}
