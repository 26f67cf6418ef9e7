//! Markdown as man(1) shows it: tables become lists of terms.

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};
use roff::{Inline, Roff, bold, italic, roman};

/// What a row of a table with the head `option` says of an option.
pub struct Explained {
    /// The names in its first cell.
    term: Vec<Inline>,
    text: Vec<Inline>,
}

impl Explained {
    /// Whether it is about the option of this name.
    pub fn is_about(&self, name: &str) -> bool {
        self.names().any(|own| own == name)
    }

    /// The names of the option.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.term.iter().filter_map(|inline| match inline {
            Inline::Bold(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// What it says.
    pub fn text(&self) -> Vec<Inline> {
        self.text.clone()
    }
}

/// Writes a text, but for the tables of options, which are returned.
pub fn write(roff: &mut Roff, text: &str) -> Vec<Explained> {
    let mut writer = Writer {
        roff,
        inlines: Vec::new(),
        face: Face::Roman,
        cells: Vec::new(),
        is_code: false,
        is_of_options: false,
        explained: Vec::new(),
    };
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        writer.take(event);
    }
    writer.explained
}

struct Writer<'a> {
    roff: &'a mut Roff,
    /// The text of the paragraph, item or cell that is being read.
    inlines: Vec<Inline>,
    /// How text is set.
    face: Face,
    /// The cells that have been read of a row.
    cells: Vec<Vec<Inline>>,
    is_code: bool,
    /// Whether the table that is being read is one of options.
    is_of_options: bool,
    explained: Vec<Explained>,
}

#[derive(Clone, Copy)]
enum Face {
    Roman,
    Bold,
    Italic,
}

impl Writer<'_> {
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
            TagEnd::TableHead => {
                let head = self.cells.first().map(Vec::as_slice);
                self.is_of_options = matches!(head, Some([Inline::Roman(word)]) if word == "option");
                self.cells.clear();
            }
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
        for line in text.lines() {
            self.roff.text([roman(line)]);
        }
        self.roff.control("fi", []).control("RE", []);
    }

    /// The first cell is the term, the others explain it.
    fn row(&mut self) {
        let mut cells = std::mem::take(&mut self.cells).into_iter();
        let Some(term) = cells.next() else { return };
        let mut text = Vec::new();
        for cell in cells.filter(|cell| !cell.is_empty()) {
            if !text.is_empty() {
                text.push(roman("; "));
            }
            text.extend(cell);
        }
        if self.is_of_options {
            self.explained.push(Explained { term, text });
        } else {
            self.roff.control("TP", []);
            self.roff.text(term);
            self.roff.text(text);
        }
    }
}
