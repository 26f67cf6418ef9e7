//! The manual pages: one for each command, for the names by which mount(8), mkfs(8) and fsck(8)
//! call the program, and for topics that belong to no command. Each page has a text in `docs/man`.
//! The synopsis and the options are those of the command line.
//!
//! A text is Markdown. The part before its first section is the description. A section
//! `Subcommands` has a part for each subcommand. A table with the head `option` describes options
//! in more detail than the command line's own help, and replaces that.

use std::io;

use clap::builder::PossibleValue;
use clap::{Arg, ArgAction, Command, CommandFactory};
use roff::{Inline, Roff, bold, italic, roman};

use super::markdown::{Explained, write};
use crate::args::{Arguments, MkfsAlone};
use crate::{fsck, mount};

macro_rules! texts {
    ($($name:literal)*) => { &[$(($name, include_str!(concat!("../../../../docs/man/", $name, ".md")))),*] };
}

/// The pages, each with its text.
const TEXTS: &[(&str, &str)] = texts![
    "ubtrfs.5" "ubtrfs-devices.7" "ubtrfs-images.7" "ubtrfs.8"
    "mount.ubtrfs.8" "mkfs.ubtrfs.8" "fsck.ubtrfs.8"
    "ubtrfs-apply.8" "ubtrfs-balance.8" "ubtrfs-cat.8" "ubtrfs-check.8" "ubtrfs-chmod.8" "ubtrfs-chown.8"
    "ubtrfs-cp.8" "ubtrfs-device.8" "ubtrfs-diff.8" "ubtrfs-export.8" "ubtrfs-filesystem.8" "ubtrfs-history.8"
    "ubtrfs-image.8" "ubtrfs-import.8" "ubtrfs-info.8" "ubtrfs-label.8" "ubtrfs-ln.8" "ubtrfs-ls.8" "ubtrfs-merge.8"
    "ubtrfs-mkdir.8" "ubtrfs-mkfs.8" "ubtrfs-mknod.8" "ubtrfs-mount.8" "ubtrfs-mv.8" "ubtrfs-property.8"
    "ubtrfs-put.8" "ubtrfs-replace.8" "ubtrfs-rescue.8" "ubtrfs-restore.8" "ubtrfs-rm.8" "ubtrfs-scrub.8"
    "ubtrfs-setfattr.8" "ubtrfs-shell.8" "ubtrfs-stat.8" "ubtrfs-stats.8" "ubtrfs-subvolume.8" "ubtrfs-sync.8"
    "ubtrfs-tree.8" "ubtrfs-truncate.8" "ubtrfs-umount.8"
];

/// The sections that follow the options.
const AT_THE_END: [&str; 2] = ["Exit status", "See also"];

/// The exit statuses for pages whose text has none.
const STATUSES: &str = "0 for success, 1 for a failure, 2 for an invalid command line.";

/// A page in the format of man(7).
pub struct Page {
    /// The name with the section: `ubtrfs-mount.8`.
    pub name: &'static str,
    pub roff: Vec<u8>,
}

impl Page {
    /// Returns the section of the manual.
    pub fn section(&self) -> &'static str {
        parts_of(self.name).1
    }
}

/// Returns all pages.
pub fn pages() -> io::Result<Vec<Page>> {
    TEXTS.iter().map(|(name, text)| Ok(Page { name, roff: page(name, text)? })).collect()
}

/// Splits the name of a page into name and section.
fn parts_of(name: &'static str) -> (&'static str, &'static str) {
    name.rsplit_once('.').unwrap_or((name, "8"))
}

/// Returns the command that a page describes, by the name that a user types.
fn command_of(page: &str) -> Option<Command> {
    let mut command = match page {
        "mount.ubtrfs.8" => mount::helper::command_line(),
        "mkfs.ubtrfs.8" => MkfsAlone::command().name("mkfs.ubtrfs"),
        "fsck.ubtrfs.8" => fsck::command_line(),
        "ubtrfs.8" => Arguments::command(),
        _ => {
            let name = page.strip_prefix("ubtrfs-")?.strip_suffix(".8")?;
            let mut all = Arguments::command();
            all.build();
            all.find_subcommand(name)?.clone()
        }
    };
    command.build();
    Some(command)
}

/// Returns the subcommands that help shows, except for help itself.
fn shown_subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
}

/// A section of a text: its heading, and its content.
struct Section {
    heading: &'static str,
    text: &'static str,
}

/// Splits a text at the lines that begin with this mark; the first part has no heading.
fn sections(text: &'static str, mark: &'static str) -> Vec<Section> {
    let mut parts = text.split(mark);
    let first = Section { heading: "", text: parts.next().unwrap_or_default() };
    let rest = parts.map(|part| {
        let (heading, text) = part.split_once('\n').unwrap_or((part, ""));
        Section { heading, text }
    });
    std::iter::once(first).chain(rest).collect()
}

fn page(name: &'static str, text: &'static str) -> io::Result<Vec<u8>> {
    let (title, number) = parts_of(name);
    let command = command_of(name);
    let summary = summary(command.as_ref(), text);
    let sections = sections(text.split_once("\n\n").map_or("", |(_, text)| text), "\n## ");
    let mut roff = Roff::new();
    let release = format!("ubtrfs {}", env!("CARGO_PKG_VERSION"));
    roff.control("TH", [title, number, "", &release, "ubtrfs"]);
    roff.control("SH", ["NAME"]).text([roman(format!("{title} - {summary}"))]);
    if let Some(command) = &command {
        roff.control("SH", ["SYNOPSIS"]);
        write_synopsis(&mut roff, command, name);
    }
    let mut explained = Vec::new();
    for Section { heading, text } in sections.iter().filter(|section| !AT_THE_END.contains(&section.heading)) {
        match (*heading, &command) {
            ("Subcommands", Some(command)) => write_subcommands(&mut roff, command, text),
            _ => explained.extend(write_section(&mut roff, heading, text)),
        }
    }
    if let Some(command) = &command {
        if name == "ubtrfs.8" {
            write_commands(&mut roff, command);
        } else if shown_subcommands(command).next().is_none() {
            roff.control("SH", ["OPTIONS"]);
            write_arguments(&mut roff, command, &explained);
        }
        if !sections.iter().any(|section| section.heading == AT_THE_END[0]) {
            write_section(&mut roff, AT_THE_END[0], STATUSES);
        }
    }
    for Section { heading, text } in sections.iter().filter(|section| AT_THE_END.contains(&section.heading)) {
        write_section(&mut roff, heading, text);
    }
    let mut bytes = Vec::new();
    roff.to_writer(&mut bytes)?;
    Ok(bytes)
}

/// Returns a line that summarizes a page: the rest of the first line of its text after the name, or
/// else the first sentence of the command's help.
fn summary(command: Option<&Command>, text: &str) -> String {
    let own = text.lines().next().and_then(|line| Some(line.split_once(": ")?.1.to_owned()));
    let about = || command.and_then(|command| Some(command.get_about()?.to_string()));
    let summary = own.or_else(about).unwrap_or_default();
    summary.split(". ").next().unwrap_or_default().trim_end_matches('.').to_owned()
}

/// Writes a section, and returns its explanations of options, which it does not write.
fn write_section(roff: &mut Roff, heading: &str, text: &str) -> Vec<Explained> {
    let heading = if heading.is_empty() { "DESCRIPTION".into() } else { heading.to_uppercase() };
    roff.control("SH", [heading.as_str()]);
    write(roff, text)
}

/// Writes the synopsis: a line for the command, or for each of its subcommands.
fn write_synopsis(roff: &mut Roff, command: &Command, page: &str) {
    let called = match page.strip_prefix("ubtrfs-") {
        Some(_) => format!("ubtrfs {}", command.get_name()),
        None => command.get_name().to_owned(),
    };
    let subcommands: Vec<&Command> = shown_subcommands(command).collect();
    if page == "ubtrfs.8" {
        roff.text([bold(&called), italic(" COMMAND "), roman("["), italic("ARGUMENT"), roman("...]")]);
    } else if subcommands.is_empty() {
        roff.text(synopsis(&called, command));
    }
    for (place, sub) in subcommands.iter().enumerate().filter(|_| page != "ubtrfs.8") {
        if place > 0 {
            roff.control("br", []);
        }
        roff.text(synopsis(&format!("{called} {}", sub.get_name()), sub));
    }
}

/// Returns a line of the synopsis. For a command with many options a single word stands for them.
fn synopsis(called: &str, command: &Command) -> Vec<Inline> {
    let mut line = vec![bold(called)];
    if shown_subcommands(command).next().is_some() {
        line.push(italic(" COMMAND ..."));
        return line;
    }
    let options: Vec<&Arg> = shown_arguments(command).filter(|arg| !arg.is_positional()).collect();
    if options.len() > 10 {
        line.push(roman(" [OPTIONS]"));
    } else {
        for option in options {
            line.push(roman(if option.is_required_set() { " " } else { " [" }));
            line.push(bold(names(option).first().cloned().unwrap_or_default()));
            line.extend(value(option));
            let repeated = if matches!(option.get_action(), ArgAction::Append) { "..." } else { "" };
            line.push(roman(format!("{}{repeated}", if option.is_required_set() { "" } else { "]" })));
        }
    }
    for arg in shown_arguments(command).filter(|arg| arg.is_positional()) {
        line.push(roman(" "));
        line.extend(positional(arg));
    }
    line
}

/// Returns the arguments that help shows, except for help itself.
fn shown_arguments(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_id() != "help")
}

/// Returns the names of an option that help shows: `-f`, `--force`.
fn names(option: &Arg) -> Vec<String> {
    let short = option.get_short().into_iter().chain(option.get_visible_short_aliases().into_iter().flatten());
    let long = option.get_long().into_iter().chain(option.get_visible_aliases().into_iter().flatten());
    short.map(|letter| format!("-{letter}")).chain(long.map(|name| format!("--{name}"))).collect()
}

/// Returns the value of an option, with the separator before it.
fn value(option: &Arg) -> Vec<Inline> {
    if !option.get_action().takes_values() {
        return Vec::new();
    }
    let name = option.get_value_names().into_iter().flatten().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    if option.get_num_args().is_some_and(|count| count.min_values() == 0) {
        vec![roman("[="), italic(name), roman("]")]
    } else {
        vec![roman(" "), italic(name)]
    }
}

/// Returns a positional argument. If it has two names, the second one is that of the last argument.
fn positional(arg: &Arg) -> Vec<Inline> {
    let names: Vec<String> = arg.get_value_names().into_iter().flatten().map(ToString::to_string).collect();
    let names = if names.is_empty() { vec![arg.get_id().as_str().to_uppercase()] } else { names };
    let count = arg.get_num_args().unwrap_or_default();
    let many = if count.max_values() > names.len() { "..." } else { "" };
    match names.as_slice() {
        [first, last] if arg.is_required_set() && count.min_values() > 1 => {
            vec![italic(first), roman(format!("{many} ")), italic(last)]
        }
        [first, last] if count.min_values() == 1 && many.is_empty() => {
            vec![italic(first), roman(" ["), italic(last), roman("]")]
        }
        [first, last] => vec![roman("["), italic(first), roman(format!("{many}] ")), italic(last)],
        _ if arg.is_required_set() => vec![italic(names.join(" ")), roman(many)],
        _ => vec![roman("["), italic(names.join(" ")), roman(format!("]{many}"))],
    }
}

/// Writes the subcommands of a command, each with its text and its options.
fn write_subcommands(roff: &mut Roff, command: &Command, text: &'static str) {
    let texts = sections(text, "\n### ");
    roff.control("SH", ["SUBCOMMANDS"]);
    write(roff, texts[0].text);
    for sub in shown_subcommands(command) {
        roff.control("SS", [sub.get_name()]);
        let explained = match texts.iter().find(|section| section.heading == sub.get_name()) {
            Some(section) => write(roff, section.text),
            None => Vec::new(),
        };
        if shown_subcommands(sub).next().is_none() {
            write_arguments(roff, sub, &explained);
        }
    }
}

fn write_arguments(roff: &mut Roff, command: &Command, explained: &[Explained]) {
    let (places, options): (Vec<_>, Vec<_>) = shown_arguments(command).partition(|arg| arg.is_positional());
    // A positional argument without help is explained with the one before it.
    for arg in options.into_iter().chain(places.into_iter().filter(|arg| !help(arg).is_empty())) {
        let names = names(arg);
        roff.control("TP", []);
        if arg.is_positional() {
            roff.text(positional(arg));
        } else {
            let mut term = Vec::new();
            for name in &names {
                if !term.is_empty() {
                    term.push(roman(", "));
                }
                term.push(bold(name.as_str()));
            }
            term.extend(value(arg));
            roff.text(term);
        }
        match explained.iter().find(|option| names.iter().any(|name| option.is_about(name))) {
            Some(option) => roff.text(option.text()),
            None => roff.text(marked(&help(arg))),
        };
    }
}

/// Returns a text in which the parts between backquotes are set as code.
fn marked(text: &str) -> Vec<Inline> {
    let parts = text.split('`').enumerate().filter(|(_, part)| !part.is_empty());
    parts.map(|(place, part)| if place % 2 == 0 { roman(part) } else { bold(part) }).collect()
}

/// Returns the command line's own help for an argument, with its values and its default.
fn help(arg: &Arg) -> String {
    let mut parts = vec![arg.get_help().or(arg.get_long_help()).map(ToString::to_string).unwrap_or_default()];
    if arg.get_action().takes_values() {
        let values = arg.get_possible_values();
        let values: Vec<&str> =
            values.iter().filter(|value| !value.is_hide_set()).map(PossibleValue::get_name).collect();
        if !values.is_empty() && !arg.is_hide_possible_values_set() {
            parts.push(format!("[possible values: {}]", values.join(", ")));
        }
        let default: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        if !default.is_empty() && !arg.is_hide_default_value_set() {
            parts.push(format!("[default: {}]", default.join(" ")));
        }
    }
    parts.join(" ").trim().to_owned()
}

/// Writes the list of commands.
fn write_commands(roff: &mut Roff, command: &Command) {
    roff.control("SH", ["COMMANDS"]);
    for sub in shown_subcommands(command) {
        roff.control("TP", []);
        roff.text([bold(format!("ubtrfs-{}", sub.get_name())), roman("(8)")]);
        roff.text([roman(summary(Some(sub), ""))]);
    }
    roff.control("SH", ["OTHER PAGES"]);
    let others = TEXTS.iter().filter(|(name, _)| !(name.starts_with("ubtrfs-") && name.ends_with(".8")));
    for (name, text) in others.filter(|(name, _)| *name != "ubtrfs.8") {
        let (title, number) = parts_of(name);
        roff.control("TP", []);
        roff.text([bold(title), roman(format!("({number})"))]);
        roff.text([roman(summary(command_of(name).as_ref(), text))]);
    }
}

#[cfg(test)]
#[path = "manual_tests.rs"]
mod tests;
