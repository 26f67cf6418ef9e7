//! A module imports only from the floors below its own, if its crate has a list of floors.
//!
//! Each line of `crates/X/FLOORS` is a floor, the highest first: names of modules in the root
//! (`file`), or of single modules in them (`file::piece`; the longer name counts). `#` begins a
//! comment. Modules on one floor may import each other, but not in a circle. Every module is on a
//! floor; the root (`crate`) is above all of them unless it is named.

use std::collections::BTreeMap;

use crate::circles::circles;
use crate::imports::{self, top};
use crate::modules::{Import, Modules};
use crate::repository::{Fault, Repository};

/// Imports from above, circles on a floor, and faults of the lists.
pub fn faults(repository: &Repository) -> Vec<Fault> {
    let crates = repository.crates().into_iter().map(|name| (name, format!("crates/{name}/FLOORS")));
    crates
        .filter_map(|(name, file)| Some((Modules::of(repository, name), repository.text(&file)?, file)))
        .flat_map(|(modules, list, file)| of_crate(&modules, &file, list))
        .collect()
}

/// The floor of each name, which is its line.
struct Floors<'a>(BTreeMap<&'a str, usize>);

impl Floors<'_> {
    fn of(&self, module: &str) -> Option<usize> {
        let ends = module.match_indices("::").map(|(end, _)| end).chain([module.len()]);
        let floors: Vec<usize> = ends.filter_map(|end| self.0.get(&module[..end]).copied()).collect();
        floors.last().copied().or((module == "crate").then_some(0))
    }
}

fn of_crate(modules: &Modules, file: &str, list: &str) -> Vec<Fault> {
    let mut floors = Floors(BTreeMap::new());
    let mut faults = Vec::new();
    for (line, text) in (1..).zip(list.lines()) {
        let names = text.split('#').next().unwrap_or_default();
        for name in names.split_whitespace() {
            if floors.0.insert(name, line).is_some() {
                faults.push(Fault::new(file, line, format!("{name} stands on two floors")));
            }
            if !modules.files().any(|(module, _)| module == name) {
                faults.push(Fault::new(file, line, format!("there is no module {name}")));
            }
        }
    }
    let missing = modules.files().filter(|(module, _)| floors.of(module).is_none());
    faults.extend(
        missing.map(|(module, source)| Fault::new(source, 1, format!("{module} stands on no floor of {file}"))),
    );
    let mut beside: BTreeMap<usize, Vec<Import>> = BTreeMap::new();
    for import in modules.imports() {
        let Import { from, to, line, path } = &import;
        match (floors.of(from), floors.of(to)) {
            (Some(low), Some(high)) if high < low => {
                let message = format!("{from} imports {path} from {to}, which is above it ({file}:{low}, {high})");
                faults.push(Fault::new(modules.file(from), *line, message));
            }
            (Some(one), Some(other)) if one == other && top(from) != top(to) => {
                beside.entry(one).or_default().push(import);
            }
            _ => {}
        }
    }
    for (floor, imports) in beside {
        let what = format!("modules on one floor ({file}:{floor})");
        let edges = circles(imports.iter().map(|import| (top(&import.from), top(&import.to))));
        faults.extend(edges.iter().map(|circle| {
            let between =
                |from: &str, to: &str| imports.iter().filter(|i| top(&i.from) == from && top(&i.to) == to).collect();
            imports::fault(modules, circle, &what, between)
        }));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(floors: &str, files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files.iter().map(|(path, text)| (format!("crates/a/src/{path}"), *text)).collect();
        let mut files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        files.push(("crates/a/FLOORS", floors));
        faults(&Repository::of(&files)).iter().map(|fault| fault.to_string().replace("crates/a/", "")).collect()
    }

    const UP: [(&str, &str); 3] = [
        ("lib.rs", "mod high;\nmod low;\nfn f() { high::f(); }"),
        ("high.rs", "use crate::low::L;\npub struct H;"),
        ("low.rs", "\nuse crate::high::H;\npub struct L;"),
    ];

    #[test]
    fn imports_from_above_are_found() {
        let faults = found("# what is above\nhigh\nlow # and below", &UP);
        assert_eq!(faults, ["src/low.rs:2: low imports crate::high::H from high, which is above it (FLOORS:3, 2)"]);
    }

    #[test]
    fn circles_on_a_floor_are_found() {
        let faults = found("high low", &UP);
        assert_eq!(faults.len(), 1);
        assert!(faults[0].contains("a circle of 2 modules on one floor (FLOORS:1): high, low\n"), "{faults:?}");
        let a = [("a/mod.rs", ""), ("a/b.rs", "use crate::c::C;"), ("a/d.rs", "pub struct D;")];
        let files = [a.as_slice(), &[("c.rs", "use crate::a::d::D;\nstruct C;")]].concat();
        assert_eq!(found("a c", &files).len(), 1, "no circle of files, but of modules");
    }

    #[test]
    fn the_root_is_above_all() {
        let faults = found("a", &[("lib.rs", "pub struct R;"), ("a.rs", "use crate::R;")]);
        assert_eq!(faults, ["src/a.rs:1: a imports crate::R from crate, which is above it (FLOORS:1, 0)"]);
        assert_eq!(found("a\ncrate", &[("lib.rs", "pub struct R;"), ("a.rs", "use crate::R;")]), [""; 0]);
    }

    #[test]
    fn a_file_may_stand_on_a_floor_of_its_own() {
        let files = [("a/mod.rs", ""), ("a/x.rs", "pub struct X;"), ("b.rs", "use crate::a::x::X;")];
        assert_eq!(
            found("a\nb", &files),
            ["src/b.rs:1: b imports crate::a::x::X from a::x, which is above it (FLOORS:2, 1)"]
        );
        assert_eq!(found("a\nb\na::x", &files), [""; 0]);
    }

    #[test]
    fn lists_and_modules_agree() {
        let faults = found("a gone\na", &[("a.rs", ""), ("b.rs", "")]);
        assert_eq!(
            faults,
            [
                "FLOORS:1: there is no module gone",
                "FLOORS:2: a stands on two floors",
                "src/b.rs:1: b stands on no floor of FLOORS",
            ]
        );
    }
}
