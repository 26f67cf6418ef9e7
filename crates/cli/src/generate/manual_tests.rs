//! Tests that the manual describes the existing commands, with the options that they have.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::*;

/// Returns a page. The first test that calls this makes all pages.
fn rendered(name: &str) -> &'static str {
    static PAGES: OnceLock<Vec<Page>> = OnceLock::new();
    let page = PAGES.get_or_init(|| pages().unwrap()).iter().find(|page| page.name == name).unwrap();
    std::str::from_utf8(&page.roff).unwrap()
}

/// Returns all names of an option, including those that help does not show.
fn all_names(option: &Arg) -> Vec<String> {
    let short = option.get_short().into_iter().chain(option.get_all_short_aliases().into_iter().flatten());
    let long = option.get_long().into_iter().chain(option.get_all_aliases().into_iter().flatten());
    short.map(|letter| format!("-{letter}")).chain(long.map(|name| format!("--{name}"))).collect()
}

/// Returns the names of the options of a command and of all commands below it.
fn options_below(command: &Command) -> BTreeSet<String> {
    let own = command.get_arguments().flat_map(all_names);
    own.chain(command.get_subcommands().flat_map(options_below)).collect()
}

/// Returns the code in a text: spans, and lines of blocks without their comments.
fn code_of(text: &str) -> Vec<String> {
    let (mut found, mut is_block) = (Vec::new(), false);
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::CodeBlock(_)) => is_block = true,
            Event::End(TagEnd::CodeBlock) => is_block = false,
            Event::Code(code) => found.push(code.to_string()),
            Event::Text(code) if is_block => {
                found.extend(code.lines().map(|line| line.split(" #").next().unwrap_or_default().trim().to_owned()));
            }
            _ => {}
        }
    }
    found
}

/// Returns the option in a single word from a command line, without its value.
fn option_in(word: &str) -> Option<String> {
    if word.starts_with("--") {
        let end = word.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-').unwrap_or(word.len());
        return (end > 2).then(|| word[..end].to_owned());
    }
    let rest = word.strip_prefix('-')?;
    // `-SIZE` is a value.
    if rest.len() > 1 && rest.chars().all(|letter| letter.is_ascii_uppercase()) {
        return None;
    }
    let letter = rest.chars().next()?;
    letter.is_ascii_alphabetic().then(|| format!("-{letter}"))
}

/// Returns the options in a piece of code that neither the command in it, nor else the page's
/// command, has.
fn unknown_options(code: &str, all: &Command, own: &BTreeSet<String>) -> Vec<String> {
    let words: Vec<&str> = code.split_whitespace().collect();
    let (allowed, words) = match words.iter().position(|word| *word == "ubtrfs") {
        Some(place) => {
            let (mut command, mut rest) = (all, &words[place + 1..]);
            while let Some(sub) = rest.first().and_then(|word| command.find_subcommand(word)) {
                (command, rest) = (sub, &rest[1..]);
            }
            (options_below(command), rest)
        }
        None if code.starts_with('-') => (own.clone(), words.as_slice()),
        None => return Vec::new(),
    };
    let words = words.iter().take_while(|word| !["|", ";", "&&", ">"].contains(word));
    words.filter_map(|word| option_in(word)).filter(|option| !allowed.contains(option)).collect()
}

fn all_commands() -> Command {
    let mut all = Arguments::command();
    all.build();
    all
}

#[test]
fn texts_are_the_files_of_the_directory() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/man");
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names = TEXTS.iter().map(|(name, _)| format!("{name}.md"));
    assert_eq!(files.collect::<BTreeSet<_>>(), names.collect());
    for (name, text) in TEXTS {
        let (title, section) = parts_of(name);
        assert!(text.starts_with(&format!("# {title}({section})")), "{name}");
    }
}

#[test]
fn commands_have_pages_with_all_sections() {
    for sub in shown_subcommands(&all_commands()) {
        let page = rendered(&format!("ubtrfs-{}.8", sub.get_name()));
        let middle = if shown_subcommands(sub).next().is_some() { "SUBCOMMANDS" } else { "OPTIONS" };
        for part in ["NAME", "SYNOPSIS", "DESCRIPTION", middle, "\"EXIT STATUS\"", "\"SEE ALSO\""] {
            assert!(page.contains(&format!(".SH {part}\n")), "{}: no {part}\n{page}", sub.get_name());
        }
    }
}

#[test]
fn options_are_described_on_the_page_of_their_command() {
    for (name, _) in TEXTS.iter().filter(|(name, _)| *name != "ubtrfs.8") {
        let Some(command) = command_of(name) else { continue };
        let page = rendered(name);
        let parts = shown_subcommands(&command).filter(|sub| shown_subcommands(sub).next().is_none());
        for command in std::iter::once(&command).chain(parts) {
            for option in shown_arguments(command) {
                assert!(option.is_positional() || !help(option).is_empty(), "{name}: no help of {option}");
                for option in names(option) {
                    let term = format!("\\fB{}\\fR", option.replace('-', "\\-"));
                    assert!(page.contains(&term), "{name}: {} has {option}", command.get_name());
                }
            }
        }
    }
}

#[test]
fn pages_name_no_options_that_are_not_there() {
    let all = all_commands();
    for (name, text) in TEXTS {
        let own = options_below(&command_of(name).unwrap_or_else(all_commands));
        let unknown: Vec<_> = code_of(text).iter().flat_map(|code| unknown_options(code, &all, &own)).collect();
        assert_eq!(unknown, [""; 0], "{name}");
    }
}

#[test]
fn explanations_are_of_options_of_their_command() {
    let mut roff = Roff::new();
    let mut count = 0;
    for (name, text) in TEXTS {
        let Some(command) = command_of(name) else { continue };
        for Section { heading, text } in sections(text, "\n### ").iter().flat_map(|part| {
            let mut parts = sections(part.text, "\n## ");
            parts[0].heading = part.heading;
            parts
        }) {
            let command = command.find_subcommand(heading).unwrap_or(&command);
            let known = options_below(command);
            for explained in write(&mut roff, text) {
                let names: Vec<_> = explained.names().collect();
                assert!(!names.is_empty() && names.iter().all(|name| known.contains(*name)), "{name}: {names:?}");
                count += 1;
            }
        }
    }
    assert!(count > 20, "{count}");
}

#[test]
fn parts_of_pages_are_subcommands() {
    for (name, text) in TEXTS {
        let Some(part) = text.split("\n## ").find(|part| part.starts_with("Subcommands\n")) else { continue };
        let command = command_of(name).unwrap();
        for part in sections(part, "\n### ").iter().skip(1) {
            assert!(shown_subcommands(&command).any(|sub| sub.get_name() == part.heading), "{name}: {}", part.heading);
        }
    }
}

#[test]
fn pages_that_are_referred_to_are_there() {
    for (name, text) in TEXTS {
        for (place, _) in text.match_indices("ubtrfs") {
            let from = text[..place]
                .rfind(|letter: char| !letter.is_ascii_alphabetic() && letter != '.')
                .map_or(0, |at| at + 1);
            let word =
                text[from..].split(|letter: char| !letter.is_ascii_alphanumeric() && !".-()".contains(letter)).next();
            if let Some((page, number)) = word.and_then(|word| word.split_once('(')) {
                let page = format!("{page}.{}", number.split(')').next().unwrap_or_default());
                assert!(TEXTS.iter().any(|(name, _)| *name == page), "{name} refers to {page}");
            }
        }
    }
}

#[test]
fn rows_of_tables_become_terms() {
    let page = rendered("ubtrfs.5");
    assert!(page.contains(".TP\n\\fBmemory=SIZE\\fR\n"), "{page}");
}

#[test]
fn the_general_page_lists_the_others() {
    let page = rendered("ubtrfs.8");
    for name in ["\\fBubtrfs\\-mount\\fR(8)", "\\fBubtrfs\\fR(5)", "\\fBfsck.ubtrfs\\fR(8)"] {
        assert!(page.contains(name), "{page}");
    }
}
