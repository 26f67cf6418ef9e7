//! The message of an error says what that error knows, and nothing of its source.
//!
//! Whatever shows an error to people takes the sentence of all causes (`ubtrfs_errors`). There a
//! message that has its source in it would say that twice. So the format of a variant does not name
//! the field that is its source: the one with `#[source]` or `#[from]`, the one called `source`, or
//! one whose type is called an error, which has to be the source. An error that is only wrapped is
//! `transparent`.

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Field, Fields, ItemStruct, LitStr, Meta, Variant};

use crate::repository::{Fault, Repository};

/// Messages that have a source of theirs in them.
pub fn faults(repository: &Repository) -> Vec<Fault> {
    let mut faults = Vec::new();
    let has_errors = |(file, text): &(&str, &str)| file.starts_with("crates/") && text.contains("#[error(");
    for (file, text) in repository.files(".rs").filter(has_errors) {
        let Ok(parsed) = syn::parse_file(text) else { continue };
        let mut reader = Reader::default();
        reader.visit_file(&parsed);
        faults.extend(reader.faults.into_iter().map(|(line, message)| Fault::new(file, line, message)));
    }
    faults
}

#[derive(Default)]
struct Reader {
    faults: Vec<(usize, String)>,
}

impl Reader {
    fn message(&mut self, name: &str, attributes: &[Attribute], fields: &Fields) {
        let Some(message) = attributes.iter().find_map(message) else { return };
        let sources = fields.iter().enumerate().filter(|(_, field)| is_source(field));
        let sources = sources.map(|(index, field)| field.ident.as_ref().map_or(index.to_string(), ToString::to_string));
        for source in sources.filter(|source| named(message.clone()).contains(source)) {
            let line = attributes.first().map_or(0, |attribute| attribute.span().start().line);
            self.faults.push((line, format!("the message of {name} has its source in it: {source}")));
        }
    }
}

impl Visit<'_> for Reader {
    fn visit_variant(&mut self, variant: &Variant) {
        self.message(&variant.ident.to_string(), &variant.attrs, &variant.fields);
        visit::visit_variant(self, variant);
    }

    fn visit_item_struct(&mut self, item: &ItemStruct) {
        self.message(&item.ident.to_string(), &item.attrs, &item.fields);
        visit::visit_item_struct(self, item);
    }
}

/// What `#[error(…)]` has in it, unless the error is `transparent`.
fn message(attribute: &Attribute) -> Option<TokenStream> {
    let Meta::List(list) = &attribute.meta else { return None };
    let is_literal = matches!(list.tokens.clone().into_iter().next(), Some(TokenTree::Literal(_)));
    (list.path.is_ident("error") && is_literal).then(|| list.tokens.clone())
}

/// Whether a field is the source of its error, or has to be.
fn is_source(field: &Field) -> bool {
    let is_marked = |attribute: &Attribute| attribute.path().is_ident("source") || attribute.path().is_ident("from");
    let is_called = field.ident.as_ref().is_some_and(|name| name == "source");
    let is_error = |token: TokenTree| matches!(token, TokenTree::Ident(name) if name.to_string().ends_with("Error"));
    is_called || field.attrs.iter().any(is_marked) || field.ty.to_token_stream().into_iter().any(is_error)
}

/// The fields that a format and its arguments name.
fn named(message: TokenStream) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_after_dot = false;
    for token in message {
        match token {
            TokenTree::Literal(literal) => match syn::parse_str::<LitStr>(&literal.to_string()) {
                Ok(format) => names.extend(in_format(&format.value())),
                // `.0` is a field, and so is the `0` of `.0.1`.
                Err(_) if is_after_dot => {
                    names.push(literal.to_string().split('.').next().unwrap_or_default().to_owned());
                }
                Err(_) => {}
            },
            TokenTree::Ident(name) => names.push(name.to_string()),
            TokenTree::Group(group) => names.extend(named(group.stream())),
            TokenTree::Punct(punct) => {
                is_after_dot = punct.as_char() == '.';
                continue;
            }
        }
        is_after_dot = false;
    }
    names
}

/// The fields between the braces of a format.
fn in_format(format: &str) -> Vec<String> {
    let plain = format.replace("{{", "").replace("}}", "");
    let inner = plain.split('{').skip(1).filter_map(|part| part.split_once('}'));
    inner.map(|(inner, _)| inner.split(':').next().unwrap_or_default().trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let text = format!("#[derive(thiserror::Error)]\npub enum Error {{\n{text}\n}}");
        faults(&Repository::of(&[("crates/a/src/a.rs", &text)])).into_iter().map(|fault| fault.message).collect()
    }

    #[test]
    fn messages_with_their_source_in_them_are_found() {
        for (variant, source) in [
            (r#"#[error("{0}")] A(#[from] B),"#, "0"),
            (r#"#[error("a {0:?} b")] A(#[source] B),"#, "0"),
            (r#"#[error("{a}: {source}")] A { a: u8, source: B },"#, "source"),
            (r#"#[error("{a}: {why}")] A { a: u8, #[source] why: B },"#, "why"),
            (r#"#[error("{} {}", a.len(), b)] A { a: u8, #[source] b: B },"#, "b"),
            (r#"#[error("{}", sentence(.1))] A(u8, #[source] B),"#, "1"),
            (r#"#[error("{}", .0.first().kind)] A(#[source] B),"#, "0"),
            (r#"#[error("{0}")] A(std::io::Error),"#, "0"),
            (r#"#[error("{why}")] A { why: Box<DataError> },"#, "why"),
        ] {
            assert_eq!(found(variant), [format!("the message of A has its source in it: {source}")], "{variant}");
        }
        let text = "#[derive(Debug)]\n#[error(\"{len}: {source}\")]\npub struct A { len: u8, source: B }";
        let fault = "crates/a/src/a.rs:1: the message of A has its source in it: source";
        let found = faults(&Repository::of(&[("crates/a/src/a.rs", text)]));
        assert_eq!(found.into_iter().map(|fault| fault.to_string()).collect::<Vec<_>>(), [fault]);
    }

    #[test]
    fn other_messages_are_let_alone() {
        for variant in [
            r"#[error(transparent)] A(#[from] Error),",
            r#"#[error("a")] A(#[from] B),"#,
            r#"#[error("{a}")] A { a: u8, source: B },"#,
            r#"#[error("{1}, {}", .1)] A(#[source] B, u8),"#,
            r#"#[error("{{source}} {0}")] A(Errno),"#,
            r#"#[error("{} source", a)] A { a: u8, source: B },"#,
            r#"/// "{source}"
            #[doc = "{source}"] A { source: B },"#,
        ] {
            assert_eq!(found(variant), [""; 0], "{variant}");
        }
    }
}
