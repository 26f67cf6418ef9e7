//! Manual pages: `ubtrfs(8)`, and one for each command. The text is that of `docs/ubtrfs.8.md`, a
//! section for each command or for several; synopsis and options are those that the command line
//! knows.

use std::io;

use clap::Command;
use clap_mangen::Man;
use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};
use roff::{Inline, Roff, bold, italic, line_break, roman};

const MANUAL: &str = include_str!("../../../../docs/ubtrfs.8.md");

/// A page in the format of man(1).
pub struct Page {
    pub file_name: String,
    pub roff: Vec<u8>,
}

/// The pages of a command and of its subcommands.
pub fn pages(mut command: Command) -> io::Result<Vec<Page>> {
    command.build();
    let sections = sections();
    let commands: Vec<Command> = command.get_subcommands().filter(|sub| is_shown(sub)).cloned().collect();
    let mut pages = vec![general_page(&command, &sections, &commands)?];
    for sub in commands {
        pages.push(command_page(&command, sub, &sections)?);
    }
    Ok(pages)
}

fn is_shown(command: &Command) -> bool {
    !command.is_hide_set() && command.get_name() != "help"
}

/// A section of the manual: its heading and its text.
struct Section {
    heading: &'static str,
    text: &'static str,
}

impl Section {
    fn is_about(&self, command: &str) -> bool {
        self.heading.split(", ").any(|name| name == command)
    }
}

/// The manual's sections; the first, without a heading, is the text before them.
fn sections() -> Vec<Section> {
    let mut parts = MANUAL.split("\n## ");
    let before = parts.next().and_then(|title| title.split_once("\n\n"));
    let first = Section { heading: "", text: before.map_or("", |(_, text)| text) };
    let rest = parts.map(|part| {
        let (heading, text) = part.split_once('\n').unwrap_or((part, ""));
        Section { heading, text }
    });
    std::iter::once(first).chain(rest).collect()
}

fn general_page(command: &Command, sections: &[Section], commands: &[Command]) -> io::Result<Page> {
    let man = Man::new(command.clone()).title("ubtrfs").section("8").manual("ubtrfs");
    let mut roff = Vec::new();
    man.render_title(&mut roff)?;
    man.render_name_section(&mut roff)?;
    let is_general = |section: &&Section| !commands.iter().any(|command| section.is_about(command.get_name()));
    for section in sections.iter().filter(is_general) {
        let heading = if section.heading.is_empty() { "DESCRIPTION".into() } else { section.heading.to_uppercase() };
        write_section(&mut roff, &heading, section.text)?;
    }
    let mut others = Roff::new();
    others.control("SH", ["SEE ALSO"]);
    let names = commands.iter().map(|command| format!("ubtrfs-{}(8)", command.get_name()));
    others.text([roman(names.collect::<Vec<_>>().join(", "))]);
    others.to_writer(&mut roff)?;
    Ok(Page { file_name: "ubtrfs.8".into(), roff })
}

fn command_page(main: &Command, command: Command, sections: &[Section]) -> io::Result<Page> {
    let name = command.get_name().to_owned();
    let title = format!("ubtrfs-{name}");
    let version = main.get_version().unwrap_or_default().to_owned();
    // The synopsis begins with what one types, the page's name has no blank.
    // What the options of a mount do the section says at length.
    let has_list = command.get_arguments().any(|argument| argument.get_id() == "options" && name == "mount");
    let command = if has_list { command.mut_arg("options", |list| list.long_help(None::<&str>)) } else { command };
    let shown = command.bin_name(format!("ubtrfs {name}")).version(version);
    let titled = shown.clone().name(title.clone()).display_name(title.clone());
    let man = |command: Command| Man::new(command).title(title.clone()).section("8").manual("ubtrfs");
    let (shown, titled) = (man(shown), man(titled));
    let mut roff = Vec::new();
    titled.render_title(&mut roff)?;
    titled.render_name_section(&mut roff)?;
    shown.render_synopsis_section(&mut roff)?;
    for section in sections.iter().filter(|section| section.is_about(&name)) {
        write_section(&mut roff, "DESCRIPTION", section.text)?;
    }
    shown.render_options_section(&mut roff)?;
    let mut others = Roff::new();
    others.control("SH", ["SEE ALSO"]);
    others.text([roman("ubtrfs(8)")]);
    others.to_writer(&mut roff)?;
    Ok(Page { file_name: format!("{title}.8"), roff })
}

fn write_section(to: &mut Vec<u8>, heading: &str, text: &str) -> io::Result<()> {
    let mut writer = Writer::default();
    writer.roff.control("SH", [heading]);
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        writer.take(event);
    }
    writer.roff.to_writer(to)
}

/// Turns Markdown into what man(1) shows: tables become lists of terms.
#[derive(Default)]
struct Writer {
    roff: Roff,
    /// The text of the paragraph, item or cell that is being read.
    inlines: Vec<Inline>,
    /// How text is set.
    face: Face,
    /// The cells that have been read of a row.
    cells: Vec<Vec<Inline>>,
    is_code: bool,
}

#[derive(Clone, Copy, Default)]
enum Face {
    #[default]
    Roman,
    Bold,
    Italic,
}

impl Writer {
    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(&tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) if self.is_code => self.code(&text),
            Event::Text(text) => self.inlines.push(match self.face {
                Face::Roman => roman(text.to_string()),
                Face::Bold => bold(text.to_string()),
                Face::Italic => italic(text.to_string()),
            }),
            Event::Code(text) => self.inlines.push(bold(text.to_string())),
            Event::SoftBreak | Event::HardBreak => self.inlines.push(roman(" ")),
            _ => {}
        }
    }

    fn start(&mut self, tag: &Tag<'_>) {
        match tag {
            Tag::Emphasis => self.face = Face::Italic,
            Tag::Strong => self.face = Face::Bold,
            Tag::CodeBlock(CodeBlockKind::Indented | CodeBlockKind::Fenced(_)) => self.is_code = true,
            Tag::Item => self.flush("PP", &[]),
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph => self.flush("PP", &[]),
            TagEnd::Item => self.flush("IP", &["*", "2"]),
            TagEnd::Heading(level) => self.flush(if level <= HeadingLevel::H2 { "SH" } else { "SS" }, &[]),
            TagEnd::CodeBlock => self.is_code = false,
            TagEnd::Emphasis | TagEnd::Strong => self.face = Face::Roman,
            TagEnd::TableCell => self.cells.push(std::mem::take(&mut self.inlines)),
            TagEnd::TableHead => self.cells.clear(),
            TagEnd::TableRow => self.row(),
            _ => {}
        }
    }

    /// Writes what has been read, after a macro of man(7).
    fn flush(&mut self, control: &str, arguments: &[&str]) {
        let inlines = std::mem::take(&mut self.inlines);
        if !inlines.is_empty() {
            self.roff.control(control, arguments.iter().copied());
            self.roff.text(inlines);
        }
    }

    fn code(&mut self, text: &str) {
        self.roff.control("PP", []).control("RS", ["4"]).control("nf", []);
        let lines = text.lines().flat_map(|line| [roman(line), line_break()]);
        self.roff.text(lines.collect::<Vec<_>>());
        self.roff.control("fi", []).control("RE", []);
    }

    /// The first cell is the term, the others explain it.
    fn row(&mut self) {
        let mut cells = std::mem::take(&mut self.cells).into_iter();
        let Some(term) = cells.next() else { return };
        self.roff.control("TP", []);
        self.roff.text(term);
        let mut text = Vec::new();
        for cell in cells.filter(|cell| !cell.is_empty()) {
            if !text.is_empty() {
                text.push(roman("; "));
            }
            text.extend(cell);
        }
        self.roff.text(text);
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Arguments;

    fn page(name: &str) -> String {
        let pages = pages(Arguments::command()).unwrap();
        let page = pages.into_iter().find(|page| page.file_name == name).unwrap();
        String::from_utf8(page.roff).unwrap()
    }

    #[test]
    fn each_command_has_a_page_with_its_section_of_the_manual() {
        let mut command = Arguments::command();
        command.build();
        for sub in command.get_subcommands().filter(|sub| is_shown(sub)) {
            let page = page(&format!("ubtrfs-{}.8", sub.get_name()));
            for part in [".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", ".SH OPTIONS"] {
                assert!(page.contains(part), "{}: no {part}", sub.get_name());
            }
        }
    }

    #[test]
    fn rows_of_tables_become_terms() {
        let page = page("ubtrfs-mount.8");
        assert!(page.contains(".TP\n\\fBmemory=SIZE\\fR\n"), "{page}");
    }

    #[test]
    fn the_general_page_refers_to_the_others() {
        let page = page("ubtrfs.8");
        assert!(page.contains("ubtrfs\\-mount(8)") && page.contains("EXIT STATUS"), "{page}");
    }
}
