//! `ubtrfs stats`: shows the statistics of a mount's server.

use ubtrfs_format::items::Timespec;

use crate::args;
use crate::control::{failure, statistics};
use crate::failure::{Failure, Result};
use crate::json;
use crate::output::say;
use crate::show;
use crate::watch::watch;

/// `ubtrfs stats`
pub fn run(arguments: &args::Stats) -> Result<()> {
    let path = &arguments.directory;
    if arguments.watch {
        return watch(path, arguments.count);
    }
    let answer = statistics(path).map_err(|errno| failure(path, errno))?;
    let mut report: serde_json::Value =
        serde_json::from_slice(&answer).map_err(|error| Failure::about(path.display(), &error))?;
    if arguments.json {
        with_times(&mut report);
        say(&format!("{report}\n"));
        return Ok(());
    }
    let mut text = String::new();
    list(&mut text, "", &report);
    say(&text);
    Ok(())
}

/// Writes the times of a report as all commands do.
fn with_times(report: &mut serde_json::Value) {
    let errors = report.get_mut("last_errors").and_then(serde_json::Value::as_array_mut);
    let times = errors.into_iter().flatten().filter_map(|error| error.get_mut("time"));
    for time in times {
        *time = json::seconds(time.as_u64().unwrap_or_default()).into();
    }
}

/// Returns a value as people read it. Times are seconds in the report.
fn for_people(name: &str, value: &serde_json::Value) -> serde_json::Value {
    match value.as_u64() {
        Some(seconds) if name == "time" => show::time(Timespec { sec: seconds, nsec: 0 }).into(),
        _ => value.clone(),
    }
}

/// Appends lines of names and values. The names of nested values are joined by dots, and the values
/// of a list are numbered.
fn list(text: &mut String, prefix: &str, value: &serde_json::Value) {
    use std::fmt::Write;
    match value {
        serde_json::Value::Object(fields) => {
            for (name, value) in fields {
                let value = &for_people(name, value);
                let name = &show::harmless(name);
                let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                list(text, &name, value);
            }
        }
        serde_json::Value::Array(values) => {
            for (number, value) in (1..).zip(values) {
                let prefix = if value.is_object() { format!("{prefix}.{number}") } else { prefix.to_owned() };
                list(text, &prefix, value);
            }
        }
        serde_json::Value::Null => {}
        serde_json::Value::String(value) => {
            let _ = writeln!(text, "{prefix:<28} {}", show::harmless(value));
        }
        value => {
            let _ = writeln!(text, "{prefix:<28} {value}");
        }
    }
}
