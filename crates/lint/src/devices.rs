//! Each implementor of `Device` keeps the trait's promises: a test of its crate runs the suite
//! (`crates/volume/src/conformance`) on it.
//!
//! Such a test is a function with `#[test]` that calls `assert_conforms` or `broken_promises`,
//! either itself or through a function of the same file that it calls by name; one of these
//! functions names the type. Types of one crate that implement `Device` have different names, so
//! that the name tells them apart.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{ItemFn, ItemImpl, Type};

use crate::repository::{Fault, Repository};

const SUITE: [&str; 2] = ["assert_conforms", "broken_promises"];

/// Implementors that no such test names.
pub fn faults(repository: &Repository) -> Vec<Fault> {
    let mut found: BTreeMap<(String, String), (String, usize)> = BTreeMap::new();
    let mut tested = BTreeSet::new();
    let mut faults = Vec::new();
    for (file, text) in repository.files(".rs") {
        let Some(name) = file.strip_prefix("crates/").and_then(|rest| rest.split('/').next()) else { continue };
        let (has_suite, has_impl) = (SUITE.iter().any(|word| text.contains(word)), text.contains("Device for "));
        let Some(parsed) = (has_suite || has_impl).then(|| syn::parse_file(text).ok()).flatten() else { continue };
        let mut reader = Reader::default();
        reader.visit_file(&parsed);
        for (device, line) in reader.devices {
            let place = (file.to_owned(), line);
            if let Some((other, _)) = found.insert((name.to_owned(), device.clone()), place) {
                faults.push(Fault::new(file, line, format!("{other} has a device of the name {device}, too")));
            }
        }
        for function in reader.functions.values().filter(|function| function.is_test) {
            let mut words = function.words.clone();
            for called in function.words.iter().filter_map(|word| reader.functions.get(word)) {
                words.extend(called.words.iter().cloned());
            }
            if SUITE.iter().any(|word| words.contains(*word)) {
                tested.extend(words.into_iter().map(|word| (name.to_owned(), word)));
            }
        }
    }
    let untested = found.into_iter().filter(|(device, _)| !tested.contains(device));
    faults.extend(untested.map(|((_, device), (file, line))| {
        Fault::new(
            &file,
            line,
            format!("no test of its crate shows that {device} conforms (ubtrfs_volume::conformance)"),
        )
    }));
    faults
}

#[derive(Default)]
struct Reader {
    /// Types that implement the trait, and the lines.
    devices: Vec<(String, usize)>,
    functions: BTreeMap<String, Function>,
}

struct Function {
    is_test: bool,
    words: BTreeSet<String>,
}

impl Visit<'_> for Reader {
    fn visit_item_impl(&mut self, item: &ItemImpl) {
        let of = item.trait_.as_ref().and_then(|(path, _)| path.segments.last());
        if let (true, Type::Path(path)) = (of.is_some_and(|of| of.ident == "Device"), &*item.self_ty)
            && let Some(name) = path.path.segments.last()
        {
            self.devices.push((name.ident.to_string(), item.span().start().line));
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_item_fn(&mut self, item: &ItemFn) {
        let is_test = item.attrs.iter().any(|attribute| attribute.path().is_ident("test"));
        let mut words = BTreeSet::new();
        collect(item.to_token_stream(), &mut words);
        self.functions.insert(item.sig.ident.to_string(), Function { is_test, words });
        visit::visit_item_fn(self, item);
    }
}

fn collect(tokens: TokenStream, words: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => {
                words.insert(ident.to_string());
            }
            TokenTree::Group(group) => collect(group.stream(), words),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        faults(&Repository::of(files)).into_iter().map(|fault| fault.to_string()).collect()
    }

    const DEVICE: &str = "struct A;\nimpl Device for A {}\n";

    #[test]
    fn a_device_that_no_test_names_is_found() {
        let untested = "crates/a/src/a.rs:2: no test of its crate shows that A conforms (ubtrfs_volume::conformance)";
        assert_eq!(found(&[("crates/a/src/a.rs", DEVICE)]), [untested]);
        for text in [
            "#[test]\nfn t() { let a = A; }",
            "fn t() { assert_conforms(A); }",
            "#[test]\nfn t() { assert_conforms(B); }",
        ] {
            assert_eq!(found(&[("crates/a/src/a.rs", DEVICE), ("crates/a/tests/t.rs", text)]), [untested], "{text}");
        }
        let elsewhere = ("crates/b/tests/t.rs", "#[test]\nfn t() { assert_conforms(A); }");
        assert_eq!(found(&[("crates/a/src/a.rs", DEVICE), elsewhere]), [untested]);
    }

    #[test]
    fn a_test_names_a_device_itself_or_by_a_function_that_it_calls() {
        for text in [
            "#[test]\nfn t() { conformance::assert_conforms(Subject::new(Arc::new(A))); }",
            "mod tests {\n#[test]\nfn t() { assert!(made().is_empty()) }\nfn made() -> B { broken_promises(A::new()) }\n}",
        ] {
            assert_eq!(found(&[("crates/a/src/a.rs", DEVICE), ("crates/a/tests/t.rs", text)]), [""; 0], "{text}");
        }
    }

    #[test]
    fn two_devices_of_a_crate_have_two_names() {
        let test = "#[test]\nfn t() { assert_conforms(A); }";
        let files = [("crates/a/src/a.rs", DEVICE), ("crates/a/src/b.rs", DEVICE), ("crates/a/src/t.rs", test)];
        assert_eq!(found(&files), ["crates/a/src/b.rs:2: crates/a/src/a.rs has a device of the name A, too"]);
        let files = [("crates/a/src/a.rs", "impl Device for A {}"), ("crates/b/src/a.rs", "impl OtherDevice for A {}")];
        assert_eq!(found(&files).len(), 1);
    }
}
