//! Names that have one meaning.
//!
//! A limit is `MAX_…` or `MIN_…`, as in the kernel and in the standard library. At most one type of
//! each name in [`SHORT`] is visible outside of its module: the names of all others say what they
//! are of.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};
use syn::{Ident, ImplItemConst, Item, ItemConst, ItemEnum, ItemStruct, TraitItemConst, Visibility};

use crate::repository::{Fault, Repository};

/// Parts of names of constants, each with the prefix to use instead.
const SUPERLATIVES: [(&str, &str); 8] = [
    ("MOST", "MAX"),
    ("LONGEST", "MAX"),
    ("LARGEST", "MAX"),
    ("GREATEST", "MAX"),
    ("DEEPEST", "MAX"),
    ("LEAST", "MIN"),
    ("SMALLEST", "MIN"),
    ("SHORTEST", "MIN"),
];

/// Names of types that say little by themselves.
const SHORT: [&str; 5] = ["Freed", "Kept", "Plan", "State", "Step"];

/// Constants and types whose name has another form, or already has another meaning.
pub fn faults(repository: &Repository) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    let sources = repository.files(".rs").filter(|(file, _)| file.starts_with("crates/"));
    for (file, text) in sources {
        let is_of_interest = |word: &str| text.contains(word);
        if !SUPERLATIVES.iter().any(|(word, _)| is_of_interest(word)) && !SHORT.iter().any(|word| is_of_interest(word))
        {
            continue;
        }
        let Ok(parsed) = syn::parse_file(text) else { continue };
        let mut reader = Reader::default();
        reader.visit_file(&parsed);
        for (name, line) in reader.constants {
            let parts = || name.split('_');
            if let Some((word, by)) = SUPERLATIVES.iter().find(|(word, _)| parts().any(|part| part == *word)) {
                faults.push(Fault::new(file, line, format!("{name}: a limit is {by}_…, not {word}")));
            }
        }
        for (name, line) in reader.types {
            match seen.get(&name) {
                Some(other) => {
                    faults.push(Fault::new(file, line, format!("{other} has a {name}, too: name it by what it is of")));
                }
                None => {
                    seen.insert(name, file);
                }
            }
        }
    }
    faults
}

#[derive(Default)]
struct Reader {
    constants: Vec<(String, usize)>,
    /// Types with a short name that are visible outside of their module.
    types: Vec<(String, usize)>,
}

impl Reader {
    fn constant(&mut self, name: &Ident) {
        self.constants.push((name.to_string(), name.span().start().line));
    }

    fn named(&mut self, visibility: &Visibility, name: &Ident) {
        if SHORT.iter().any(|short| name == short) && !matches!(visibility, Visibility::Inherited) {
            self.types.push((name.to_string(), name.span().start().line));
        }
    }
}

impl Visit<'_> for Reader {
    fn visit_item(&mut self, item: &Item) {
        if let Item::Type(item) = item {
            self.named(&item.vis, &item.ident);
        }
        visit::visit_item(self, item);
    }

    fn visit_item_const(&mut self, item: &ItemConst) {
        self.constant(&item.ident);
        visit::visit_item_const(self, item);
    }

    fn visit_impl_item_const(&mut self, item: &ImplItemConst) {
        self.constant(&item.ident);
    }

    fn visit_trait_item_const(&mut self, item: &TraitItemConst) {
        self.constant(&item.ident);
    }

    fn visit_item_struct(&mut self, item: &ItemStruct) {
        self.named(&item.vis, &item.ident);
    }

    fn visit_item_enum(&mut self, item: &ItemEnum) {
        self.named(&item.vis, &item.ident);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        faults(&Repository::of(files)).into_iter().map(|fault| fault.to_string()).collect()
    }

    #[test]
    fn limits_are_max_or_min() {
        for (text, by) in [
            ("const MOST_LINKS: u8 = 1;", "MOST_LINKS: a limit is MAX_…, not MOST"),
            ("pub const LEAST: u8 = 1;", "LEAST: a limit is MIN_…, not LEAST"),
            ("impl A { const USUAL_LONGEST: u8 = 1; }", "USUAL_LONGEST: a limit is MAX_…, not LONGEST"),
            ("fn f() { const SMALLEST_ONE: u8 = 1; }", "SMALLEST_ONE: a limit is MIN_…, not SMALLEST"),
        ] {
            assert_eq!(found(&[("crates/a/tests/a.rs", text)]), [format!("crates/a/tests/a.rs:1: {by}")], "{text}");
        }
        assert_eq!(
            found(&[("crates/a/src/a.rs", "const MAX_LINKS: u8 = 1; const ALMOST: u8 = 1; const LEASTWAYS: u8 = 1;")]),
            [""; 0]
        );
    }

    #[test]
    fn short_names_of_types_are_seen_once() {
        let (one, other) = ("pub(crate) struct Plan;", "pub enum Plan {}");
        let files = [("crates/a/src/a.rs", one), ("crates/b/src/b.rs", other)];
        assert_eq!(found(&files), ["crates/b/src/b.rs:1: crates/a/src/a.rs has a Plan, too: name it by what it is of"]);
        for other in ["struct Plan;", "pub struct MovePlan;", "use a::Plan;"] {
            assert_eq!(found(&[("crates/a/src/a.rs", one), ("crates/b/src/b.rs", other)]), [""; 0], "{other}");
        }
    }
}
