//! The modules of a crate, and which file imports which name from which other file.
//!
//! An import of a name that a module re-exports (`pub use`) counts as an import from the file that
//! defines the name. The re-export itself counts as an import only if the module also uses the
//! name. A module that is imported as such (`use crate::names;`) counts where it is used
//! (`names::find`).

use std::collections::{BTreeMap, BTreeSet};

use crate::parse::{self, Names, Use};
use crate::repository::{Fault, Repository};
use crate::scope::{Found, Scope};

/// An import from another file of the same crate.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Import {
    /// The module of the file that imports.
    pub from: String,
    /// The module of the file that defines the name.
    pub to: String,
    /// The line in the file that imports.
    pub line: usize,
    /// The path as the source has it.
    pub path: String,
}

/// The modules of a crate that aren't for tests. A module is known by its names from the root,
/// joined by `::`; the root is `crate`.
pub struct Modules {
    all: Scope,
    files: BTreeMap<Names, String>,
    /// Files that couldn't be read.
    pub faults: Vec<Fault>,
}

impl Modules {
    /// Reads the crate in a directory under `crates/`.
    pub fn of(repository: &Repository, name: &str) -> Self {
        let mut this = Self { all: Scope::default(), files: BTreeMap::new(), faults: Vec::new() };
        let sources = format!("crates/{name}/src/");
        let mut tests = Vec::new();
        for (file, text) in repository.files(".rs").filter(|(file, _)| !file.ends_with("tests.rs")) {
            let Some(path) = file.strip_prefix(&sources) else { continue };
            let module = module_of(path);
            match parse::parse(&module, text) {
                Ok(parsed) => {
                    this.all.0.extend(parsed.modules);
                    tests.extend(parsed.tests);
                }
                Err(line) => this.faults.push(Fault::new(file, line, "this can't be read as Rust")),
            }
            this.files.insert(module, file.to_owned());
        }
        let is_test = |module: &Names| tests.iter().any(|test| module.starts_with(test));
        this.all.0.retain(|module, _| !is_test(module));
        this.files.retain(|module, _| !is_test(module));
        this
    }

    /// Returns the modules that are files, and their files.
    pub fn files(&self) -> impl Iterator<Item = (String, &str)> {
        self.files.iter().map(|(module, file)| (display(module), file.as_str()))
    }

    /// Returns the file of a module, or an empty text if it has none.
    pub fn file(&self, module: &str) -> &str {
        self.files().find(|(name, _)| name == module).map_or("", |(_, file)| file)
    }

    /// Returns the imports between files, by their modules; each path occurs once for two files.
    pub fn imports(&self) -> Vec<Import> {
        let mut imports = BTreeMap::new();
        for (at, module) in &self.all.0 {
            let from = self.owner(at);
            let mut add = |path: &[String], line, to: &Names| {
                let to = self.owner(to);
                if from != to {
                    imports.entry((display(from), display(to), path.join("::"))).or_insert(line);
                }
            };
            let used: BTreeSet<&str> =
                module.paths.iter().filter_map(|(path, _)| Some(path.first()?.as_str())).collect();
            for Use { name, path, line, is_export } in &module.uses {
                let is_used = name.as_deref().is_some_and(|name| used.contains(name));
                match self.all.find(at, path) {
                    _ if *is_export && !is_used => {}
                    Some(Found::In(to)) => add(path, *line, &to),
                    Some(Found::Module(to)) if name.is_none() => add(path, *line, &to),
                    Some(Found::Module(_)) | None => {}
                }
            }
            for (path, line) in &module.paths {
                if self.all.leads_through_modules(at, path)
                    && let Some(Found::In(to) | Found::Module(to)) = self.all.find(at, path)
                {
                    add(path, *line, &to);
                }
            }
        }
        imports.into_iter().map(|((from, to, path), line)| Import { from, to, line, path }).collect()
    }

    /// Returns the module whose file contains a module.
    fn owner<'a>(&self, module: &'a [String]) -> &'a [String] {
        (0..=module.len())
            .rev()
            .map(|length| &module[..length])
            .find(|names| self.files.contains_key(*names))
            .unwrap_or(&[])
    }
}

/// Returns the names of the module that a file is, from its path under `src/`.
fn module_of(path: &str) -> Names {
    let mut names: Names = path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if names == ["lib"] || names == ["main"] || names.last().is_some_and(|name| name == "mod") {
        names.pop();
    }
    names
}

fn display(module: &[String]) -> String {
    if module.is_empty() { "crate".to_owned() } else { module.join("::") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the imports of a crate of these files, as `from -> to path`.
    fn imports(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files.iter().map(|(path, text)| (format!("crates/a/src/{path}"), *text)).collect();
        let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let modules = Modules::of(&Repository::of(&files), "a");
        assert_eq!(modules.faults, []);
        modules.imports().iter().map(|i| format!("{} -> {} {}", i.from, i.to, i.path)).collect()
    }

    #[test]
    fn nested_uses_and_inline_paths_import() {
        let text = "use crate::{b::{self, B}, c::C as D};\nfn f() { b::g(); super::c::h(); m!(crate::c::x()); }";
        let found = imports(&[("a.rs", text), ("b.rs", "pub struct B;"), ("c.rs", "pub struct C;")]);
        assert_eq!(
            found,
            ["a -> b b::g", "a -> b crate::b::B", "a -> c crate::c::C", "a -> c crate::c::x", "a -> c super::c::h"]
        );
    }

    #[test]
    fn reexports_are_imported_from_their_definition() {
        let files = [
            ("d/mod.rs", "mod e;\nmod f;\npub use e::E;\npub(crate) use f::*;\npub use std::io::Error;"),
            ("d/e.rs", "use super::F;\npub struct E;"),
            ("d/f.rs", "pub struct F;"),
            ("g.rs", "use crate::d::{E, F, Error};"),
        ];
        let found = imports(&files);
        assert_eq!(
            found,
            ["d::e -> d::f super::F", "g -> d crate::d::Error", "g -> d::e crate::d::E", "g -> d::f crate::d::F"]
        );
    }

    #[test]
    fn reexports_that_are_used_are_imports_too() {
        let found = imports(&[("d/mod.rs", "pub use e::E;\nfn f() -> E { E }"), ("d/e.rs", "pub struct E;")]);
        assert_eq!(found, ["d -> d::e e::E"]);
    }

    #[test]
    fn modules_in_a_file_are_that_file() {
        let found = imports(&[
            ("a.rs", "pub mod x { use super::T; use super::super::b::U; }\nstruct T;"),
            ("b.rs", "struct U;"),
        ]);
        assert_eq!(found, ["a -> b super::super::b::U"]);
    }

    #[test]
    fn tests_and_comments_import_nothing() {
        let files = [
            ("lib.rs", "#[cfg(test)]\nmod help;\nmod b;\n#[cfg(all(test, unix))]\nmod more;"),
            ("help.rs", "use crate::b::B;"),
            ("more.rs", "use crate::b::B;"),
            ("b.rs", "/// Of [`crate::c::C`].\npub struct B;\n#[cfg(test)]\nmod tests { use crate::c::C; }"),
            ("b/tests.rs", "use crate::c::C;"),
            ("c.rs", "pub struct C;\nimpl C { #[cfg(test)] fn f() { crate::b::g(); } }"),
        ];
        assert_eq!(imports(&files), [""; 0]);
    }

    #[test]
    fn names_that_pass_each_other_on_end() {
        let files = [("a.rs", "pub use crate::b::X;"), ("b.rs", "pub use crate::a::X;\nfn f(x: X) {}")];
        assert!(imports(&files).len() <= 1);
    }
}
