//! `ubtrfs apply`: carries out a script of edits.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::Parser;
use shlex::bytes::Shlex;

use super::act::perform;
use super::locate::Where;
use super::session::edit;
use crate::args::edit::{Apply, EditCommand};
use crate::failure::{Failure, Result};

/// The most bytes of a script.
const MAX_SCRIPT: u64 = 64 << 20;

/// A line of a script.
#[derive(Debug, Parser)]
#[command(name = "apply", no_binary_name = true, disable_help_flag = true, disable_help_subcommand = true)]
struct Line {
    #[command(subcommand)]
    command: EditCommand,
}

/// `ubtrfs apply`
pub fn apply(arguments: &Apply) -> Result<()> {
    let shown = arguments.script.display();
    let text = if arguments.script.as_os_str() == "-" {
        all_of(io::stdin().lock())
    } else {
        File::open(&arguments.script).and_then(all_of)
    };
    let text = text.map_err(|error| Failure::about(&shown, &error))?;
    let at = |number: usize, failure: Failure| {
        failure.map_sentence(|sentence| format!("line {number} of {shown}: {sentence}"))
    };
    let mut commands = Vec::new();
    for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
        if let Some(command) = parse(line).map_err(|failure| at(number, failure))? {
            commands.push((number, command));
        }
    }
    edit(&arguments.image, arguments.window, arguments.how, |edited, job| {
        let mut each = commands.iter();
        each.try_for_each(|(number, command)| {
            perform(edited, command, &locate, job).map_err(|failure| at(*number, failure))
        })
    })
}

/// Reads a whole script, which is kept in memory.
fn all_of(script: impl Read) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    script.take(MAX_SCRIPT + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_SCRIPT {
        return Err(io::Error::other(format!("a script has at most {} MiB", MAX_SCRIPT >> 20)));
    }
    Ok(text)
}

/// Returns the place that a word in a script names: `:PATH` is in the image.
fn locate(word: &OsStr) -> Where {
    match word.as_bytes().strip_prefix(b":") {
        Some(path) => Where::Inside(OsStr::from_bytes(path).into()),
        None => Where::Host(word.into()),
    }
}

/// Parses the command of a line, if it has one. Words are split as by a shell, without
/// substitutions.
fn parse(line: &[u8]) -> Result<Option<EditCommand>> {
    let mut lexer = Shlex::new(line);
    let words: Vec<OsString> = lexer.by_ref().map(OsString::from_vec).collect();
    if lexer.had_error {
        return Err(Failure::new("a quotation mark or a backslash has no counterpart"));
    }
    if words.is_empty() {
        return Ok(None);
    }
    let line = Line::try_parse_from(words).map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        Failure::new(first.strip_prefix("error: ").unwrap_or(first))
    })?;
    if let EditCommand::Cp(arguments) = &line.command
        && (arguments.how.json || arguments.how.of_writing().is_some())
    {
        let sentence =
            "--commit-every, --memory, --compress and --json are options of apply, not of a line of a script";
        return Err(Failure::new(sentence));
    }
    let window = line.command.window();
    if !window.is_whole() {
        return Err(Failure::new("where the volume is in its image is said to apply, not in a script"));
    }
    if matches!(line.command, EditCommand::Put(_)) {
        return Err(Failure::new("put reads the standard input, which a script has not: use cp"));
    }
    for word in line.command.places() {
        let is_copy = matches!(line.command, EditCommand::Cp(_));
        if !is_copy && !word.as_bytes().starts_with(b":") {
            return Err(Failure::new(format!("{} is not in the image: write :PATH", word.display())));
        }
    }
    if let EditCommand::Cp(arguments) = &line.command
        && !arguments.places.last().is_some_and(|to| to.as_bytes().starts_with(b":"))
    {
        return Err(Failure::new("a script changes nothing but the image: cp needs :PATH in the end"));
    }
    Ok(Some(line.command))
}
