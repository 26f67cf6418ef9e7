//! Converts Markdown for man(1): tables become lists of terms.

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};
use roff::{Inline, Roff, bold, italic, roman};

/// The explanation of an option: a row of a table with the head `option`.
pub struct Explained {
    /// The names in its first cell.
    term: Vec<Inline>,
    text: Vec<Inline>,
}

impl Explained {
    /// Whether it explains the option with this name.
    pub fn is_about(&self, name: &str) -> bool {
        self.names().any(|own| own == name)
    }

    /// Returns the names of the option.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.term.iter().filter_map(|inline| match inline {
            Inline::Bold(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Returns the explanation.
    pub fn text(&self) -> Vec<Inline> {
        self.text.clone()
    }
}

/// Writes a text, except for the tables of options, which it returns.
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
    /// The text of the current paragraph, item or cell.
    inlines: Vec<Inline>,
    /// The typeface of the text.
    face: Face,
    /// The cells of the current row so far.
    cells: Vec<Vec<Inline>>,
    is_code: bool,
    /// Whether the current table explains options.
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

    /// Writes the collected text after a macro of man(7).
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

    /// Writes a row: the first cell is the term, and the others explain it.
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
