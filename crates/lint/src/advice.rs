//! The library gives no advice about commands and their options: the program does.
//!
//! Other programs show the same texts, and have other commands. So no text of several words in a
//! crate of the library names an option (`-o`, `--size`) or a command of ubtrfs in quotation marks;
//! what to do about an error is in `crates/cli/src/advice.rs`, by the kind of the error.

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItem, Item, LitStr, Macro, Meta};

use crate::constants::is_of_the_program;
use crate::parse::{attributes, is_for_tests};
use crate::repository::{Fault, Repository};

/// Texts that name commands or options.
pub fn faults(repository: &Repository) -> Vec<Fault> {
    let is_of_the_library = |file: &str| is_of_the_program(file) && !file.starts_with("crates/cli/");
    let mut faults = Vec::new();
    for (file, text) in repository.files(".rs").filter(|(file, _)| is_of_the_library(file)) {
        let Ok(parsed) = syn::parse_file(text) else { continue };
        let mut reader = Reader::default();
        reader.visit_file(&parsed);
        for (text, line) in reader.texts {
            let message = advice(&text).map(|named| format!("the library gives advice: {named}"));
            faults.extend(message.map(|message| Fault::new(file, line, message)));
        }
    }
    faults
}

/// What a text names that only the program has.
fn advice(text: &str) -> Option<String> {
    let is_option = |word: &&str| {
        let name = word.strip_prefix('-').map(|rest| rest.strip_prefix('-').unwrap_or(rest));
        name.is_some_and(|name| name.starts_with(|first: char| first.is_ascii_alphabetic()))
    };
    let mut words = text.split_whitespace().map(|word| word.trim_start_matches(['(', '\'', '`', '"']));
    let of_ubtrfs = ["'ubtrfs ", "`ubtrfs "].into_iter().find(|begin| text.contains(begin));
    if !text.contains(char::is_whitespace) {
        return None;
    }
    of_ubtrfs
        .or_else(|| words.find(is_option))
        .map(|named| named.trim_end_matches([' ', ')', '\'', '`', ';', ':', ',']).to_owned())
}

#[derive(Default)]
struct Reader {
    /// Texts and their lines.
    texts: Vec<(String, usize)>,
}

impl Reader {
    fn scan(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Literal(literal) => {
                    let text = syn::parse_str::<LitStr>(&literal.to_string());
                    self.texts.extend(text.ok().map(|text| (text.value(), literal.span().start().line)));
                }
                TokenTree::Group(group) => self.scan(group.stream()),
                TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
        }
    }
}

impl Visit<'_> for Reader {
    fn visit_item(&mut self, item: &Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &ImplItem) {
        if !matches!(item, ImplItem::Fn(function) if is_for_tests(&function.attrs)) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_lit_str(&mut self, text: &LitStr) {
        self.texts.push((text.value(), text.span().start().line));
    }

    fn visit_macro(&mut self, call: &Macro) {
        self.scan(call.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &Attribute) {
        // Not documentation, and not why a warning is allowed.
        if let Meta::List(list) = &attribute.meta
            && list.path.is_ident("error")
        {
            self.scan(list.tokens.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(file: &str, text: &str) -> Vec<String> {
        faults(&Repository::of(&[(file, text)])).into_iter().map(|fault| fault.to_string()).collect()
    }

    #[test]
    fn texts_that_name_commands_or_options_are_found() {
        for (text, named) in [
            ("enum E {\n    #[error(\"{0}: mount it with -o ro\")] A(u8) }", "-o"),
            ("fn f() {\n    tracing::warn!(a, \"as it is ('mount --degraded')\"); }", "--degraded"),
            ("fn f() {\n    g(&format!(\"see 'ubtrfs check' of {a}\")); }", "'ubtrfs"),
            ("fn f() -> &str {\n    \"it is a directory: -r removes those\" }", "-r"),
            ("const A: &str =\n    \"`ubtrfs umount` clears it\";", "`ubtrfs"),
        ] {
            let fault = format!("crates/fs/src/a.rs:2: the library gives advice: {named}");
            assert_eq!(found("crates/fs/src/a.rs", text), [fault], "{text}");
        }
    }

    #[test]
    fn other_texts_and_those_of_the_program_and_of_tests_are_let_alone() {
        for text in [
            "fn f() { c.arg(\"-o\").arg(\"--bind\"); }",
            "/// See 'ubtrfs check' --repair.\n#[allow(missing_docs, reason = \"'ubtrfs stats' shows it\")]\nfn f() {}",
            "fn f() { g(\"a half-open range, -1 - 2, well - so\"); }",
            "#[cfg(test)]\nmod tests { fn f() { g(\"mount -o ro\"); } }",
        ] {
            assert_eq!(found("crates/fs/src/a.rs", text), [""; 0], "{text}");
        }
        let text = "fn f() { g(\"mount it with -o ro\"); }";
        for file in ["crates/cli/src/a.rs", "crates/testkit/src/a.rs", "crates/fs/tests/a.rs", "crates/fs/src/tests.rs"]
        {
            assert_eq!(found(file, text), [""; 0], "{file}");
        }
    }
}
