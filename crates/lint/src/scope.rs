//! Finds what a path means in a module.

use std::collections::BTreeMap;

use crate::parse::{Module, Names};

/// The number of re-exports in a row that a search follows.
const HOPS: usize = 16;

/// What a path refers to.
pub enum Found {
    /// A module.
    Module(Names),
    /// An item that this module defines, or has from another crate.
    In(Names),
}

/// The modules of a crate, by their names from the root.
#[derive(Default)]
pub struct Scope(pub BTreeMap<Names, Module>);

impl Scope {
    /// Returns whether a path in code is an import by itself, rather than one of a name that a
    /// `use` has imported. (A single name may be a variable's.)
    pub fn leads_through_modules(&self, at: &[String], path: &[String]) -> bool {
        let [first, _, ..] = path else { return false };
        ["crate", "self", "super"].contains(&first.as_str())
            || matches!(self.step(at, first, HOPS), Some(Found::Module(_)))
    }

    /// Returns what a path in a module refers to; `None` if it is outside the crate.
    pub fn find(&self, at: &[String], path: &[String]) -> Option<Found> {
        self.find_within(at, path, HOPS)
    }

    fn find_within(&self, at: &[String], path: &[String], hops: usize) -> Option<Found> {
        let supers = path.iter().take_while(|name| *name == "super" || *name == "self").count();
        let (mut at, rest) = match path.first()?.as_str() {
            "crate" => (Names::new(), &path[1..]),
            "self" | "super" => {
                let up = path[..supers].iter().filter(|name| *name == "super").count();
                (at[..at.len().checked_sub(up)?].to_vec(), &path[supers..])
            }
            first => match self.step(at, first, hops)? {
                Found::Module(module) => (module, &path[1..]),
                found @ Found::In(_) => return Some(found),
            },
        };
        for name in rest {
            match self.step(&at, name, hops) {
                Some(Found::Module(module)) => at = module,
                Some(found) => return Some(found),
                // A macro makes the name.
                None => return Some(Found::In(at)),
            }
        }
        Some(Found::Module(at))
    }

    /// Returns what a name means in a module.
    fn step(&self, at: &[String], name: &str, hops: usize) -> Option<Found> {
        let hops = hops.checked_sub(1)?;
        let child = [at, &[name.to_owned()]].concat();
        if self.0.contains_key(&child) {
            return Some(Found::Module(child));
        }
        let module = self.0.get(at)?;
        if module.items.contains(name) {
            return Some(Found::In(at.to_vec()));
        }
        if let Some(import) = module.uses.iter().find(|import| import.name.as_deref() == Some(name)) {
            return self.find_within(at, &import.path, hops).or_else(|| Some(Found::In(at.to_vec())));
        }
        module.uses.iter().filter(|import| import.name.is_none()).find_map(|import| {
            match self.find_within(at, &import.path, hops)? {
                Found::Module(module) if module != at => self.step(&module, name, hops),
                _ => None,
            }
        })
    }
}
