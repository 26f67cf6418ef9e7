//! Files of a crate import each other in no circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::circles::{Circle, circles};
use crate::modules::{Import, Modules};
use crate::repository::{Fault, Repository};

/// Circles of files. Each names the imports whose removal would break it.
pub fn faults(repository: &Repository) -> Vec<Fault> {
    repository.crates().into_iter().flat_map(|name| of_crate(&Modules::of(repository, name))).collect()
}

fn of_crate(modules: &Modules) -> Vec<Fault> {
    let imports = modules.imports();
    let edges = imports.iter().map(|import| (import.from.as_str(), import.to.as_str()));
    let circles = circles(edges);
    let faults = circles.iter().map(|circle| {
        fault(modules, circle, "files", |from, to| imports.iter().filter(|i| i.from == from && i.to == to).collect())
    });
    modules.faults.iter().cloned().chain(faults).collect()
}

/// Returns the fault of a circle, at the first import that closes it. The details list all imports
/// that close it; `between` returns those of an edge.
pub fn fault<'a>(
    modules: &Modules,
    circle: &Circle,
    what: &str,
    between: impl Fn(&str, &str) -> Vec<&'a Import>,
) -> Fault {
    let members: Vec<&str> = circle.members.iter().map(String::as_str).collect();
    let mut message = format!("a circle of {} {what}: {}", members.len(), members.join(", "));
    let mut place = None;
    for closing in &circle.closing {
        write!(message, "\n    {} -> {}", closing.join(" -> "), closing[0]).expect("a string takes it");
        let mut lines: BTreeMap<(&str, usize), Vec<&str>> = BTreeMap::new();
        for import in between(&closing[0], &closing[1]) {
            lines.entry((modules.file(&import.from), import.line)).or_default().push(&import.path);
        }
        for ((file, line), paths) in lines {
            place.get_or_insert((file, line));
            write!(message, "\n        {file}:{line}: {}", paths.join(", ")).expect("a string takes it");
        }
    }
    let (file, line) = place.unwrap_or_default();
    Fault::new(file, line, message)
}

/// Returns what the modules of a crate import from each other. A module in the root counts with all
/// modules in it.
pub fn graph(repository: &Repository, name: &str) -> String {
    let mut edges: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    let modules = Modules::of(repository, name);
    let names: BTreeSet<String> = modules.files().map(|(module, _)| top(&module).to_owned()).collect();
    let imports = modules.imports();
    for import in imports.iter().filter(|import| top(&import.from) != top(&import.to)) {
        *edges.entry(top(&import.from)).or_default().entry(top(&import.to)).or_default() += 1;
    }
    let mut text = String::new();
    for name in &names {
        let to = edges.remove(name.as_str()).unwrap_or_default();
        let to: Vec<String> = to.iter().map(|(to, count)| format!("{to} {count}")).collect();
        writeln!(text, "{name} -> {}", to.join(", ")).expect("a string takes it");
    }
    text
}

/// The module in the root that a module belongs to.
pub fn top(module: &str) -> &str {
    module.split_once("::").map_or(module, |(top, _)| top)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_found_with_what_closes_it() {
        let repository = Repository::of(&[
            ("crates/a/src/lib.rs", "mod b;\nmod c;\npub use b::B;"),
            ("crates/a/src/b.rs", "use crate::c::C;\npub struct B;"),
            ("crates/a/src/c.rs", "\npub struct C;\nfn f() { crate::b::g(); }"),
        ]);
        let found = faults(&repository);
        let [fault] = found.as_slice() else { panic!("one circle, not {found:?}") };
        assert!(fault.message.starts_with("a circle of 2 files: b, c\n"), "{fault}");
        assert!([("crates/a/src/b.rs", 1), ("crates/a/src/c.rs", 3)].contains(&(&fault.file, fault.line)), "{fault}");
    }

    #[test]
    fn children_may_use_each_other_by_their_parent() {
        let repository = Repository::of(&[
            ("crates/a/src/d/mod.rs", "mod e;\nmod f;\npub use e::E;\npub use f::F;"),
            ("crates/a/src/d/e.rs", "use super::F;\npub struct E;"),
            ("crates/a/src/d/f.rs", "pub struct F;"),
        ]);
        assert_eq!(faults(&repository), []);
    }

    #[test]
    fn the_graph_counts_imports_between_modules_in_the_root() {
        let repository = Repository::of(&[
            ("crates/a/src/lib.rs", "mod b;\nmod c;"),
            ("crates/a/src/b/mod.rs", "mod x;\nuse x::X;\nuse crate::c::C;"),
            ("crates/a/src/b/x.rs", "use crate::c::{C, D};\npub struct X;"),
            ("crates/a/src/c.rs", "pub struct C;\npub struct D;"),
        ]);
        assert_eq!(graph(&repository, "a"), "b -> c 3\nc -> \ncrate -> \n");
    }
}
