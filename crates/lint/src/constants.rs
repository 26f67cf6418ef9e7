//! A constant has one definition.
//!
//! Two constants with the same name and the same value in different files of the program count as
//! one constant: the lower of the two files has to define it, or a crate below both
//! (`ubtrfs_format`, with its modules `posix` and `units`). Tests and the crates for tests have
//! constants of their own, so that they don't follow a mistake. A timeout is defined where it is
//! used. [`OWN`] lists names that several places use for limits of their own whose values happen to
//! be equal, and says what they limit.
//!
//! A value that the format, POSIX or the kernel defines has one name: the literals in [`FACTS`]
//! occur where that name is defined, and nowhere else.

use std::collections::BTreeMap;

use quote::ToTokens;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{ImplItem, Item, ItemConst, Lit};

use crate::parse::{attributes, is_for_tests, is_of_tests};
use crate::repository::{Fault, Repository};

/// Crates that only tests and measurements use, and the lint itself.
const OF_TESTS: [&str; 7] = ["bench", "damage", "fuzzing", "interleavings", "lint", "simulator", "testkit"];

/// Names of limits that each place defines for itself, and the reason why equal values are a
/// coincidence.
const OWN: &[(&str, &str)] = &[
    ("ALIGNMENT", "of replies and of devices: each crate aligns what its kernel interface wants"),
    ("BATCH", "entries that are handled at a time"),
    ("BLOCK", "of hashes, of files and of requests: units of different formats"),
    ("BOUNCE", "bytes of a buffer that something else is copied through"),
    ("FEW", "how much counts as little"),
    ("HEAD", "bytes before the rest of a message"),
    ("LAST", "a flag of different messages"),
    ("MAX", "of something that the file is about"),
    ("MAX_BYTES", "of something that the file is about"),
    ("MAX_RANGES", "of something that the file is about"),
    ("PIECE", "bytes that are handled at a time"),
    ("READ_ONLY", "a flag of different interfaces"),
    ("ROOM", "bytes of a buffer"),
    ("SECTOR", "of partition tables and of what a witness compares"),
    ("SHOWN", "lines that one report shows of something"),
    ("SIZE", "bytes of what the file is about"),
    ("SOURCE_LABEL", "crates/fuse and crates/volume don't know each other; tests mount by both"),
    ("THREADS", "how many something has of its own"),
];

/// Files with offsets of fields in the arguments of ioctls: each has its own, by the same names.
const IOCTLS: [&str; 9] = [
    "btrfs_ioctls.rs",
    "subvolume_ioctls.rs",
    "device_ioctls.rs",
    "vacate_ioctls.rs",
    "ioctls.rs",
    "scrub.rs",
    "balance.rs",
    "extent_map.rs",
    "defragment.rs",
];

/// Literals without underscores, what they are called, and the file that may have them.
const FACTS: &[(&str, &str, &str)] = &[
    ("0o170000", "ubtrfs_format::posix::S_IFMT", POSIX),
    ("0o140000", "ubtrfs_format::posix::S_IFSOCK", POSIX),
    ("0o120000", "ubtrfs_format::posix::S_IFLNK", POSIX),
    ("0o100000", "ubtrfs_format::posix::S_IFREG", POSIX),
    ("0o060000", "ubtrfs_format::posix::S_IFBLK", POSIX),
    ("0o040000", "ubtrfs_format::posix::S_IFDIR", POSIX),
    ("0o020000", "ubtrfs_format::posix::S_IFCHR", POSIX),
    ("0o010000", "ubtrfs_format::posix::S_IFIFO", POSIX),
    ("\"system.posix_acl_access\"", "ubtrfs::acl::ACCESS", ACL),
    ("\"system.posix_acl_default\"", "ubtrfs::acl::DEFAULT", ACL),
    ("\"security.capability\"", "ubtrfs::xattr_names::CAPABILITY", XATTRS),
    ("\"/proc/self/mountinfo\"", "ubtrfs_mounts::TABLE", "crates/mounts/src/lib.rs"),
];
const POSIX: &str = "crates/format/src/posix.rs";
const ACL: &str = "crates/fs/src/acl.rs";
const XATTRS: &str = "crates/fs/src/xattr_names.rs";

/// Constants that are defined more than once, and facts that are written without their name.
pub fn faults(repository: &Repository) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut defined: BTreeMap<(String, String), (&str, usize)> = BTreeMap::new();
    for (file, text) in repository.files(".rs").filter(|(file, _)| is_of_the_program(file)) {
        let Ok(parsed) = syn::parse_file(text) else { continue };
        let mut reader = Reader::default();
        reader.visit_file(&parsed);
        for (literal, line) in reader.literals {
            let fact = FACTS.iter().find(|(fact, _, owner)| *fact == literal && *owner != file);
            faults.extend(fact.map(|(_, name, _)| Fault::new(file, line, format!("{literal} is {name}"))));
        }
        let is_table = IOCTLS.contains(&file.rsplit('/').next().unwrap_or_default());
        for (name, value, line) in reader.constants.into_iter().filter(|_| !is_table) {
            let is_own = value.contains("Duration ::") || OWN.iter().any(|(own, _)| *own == name);
            match defined.get(&(name.clone(), value.clone())) {
                Some((other, _)) if *other != file && !is_own => {
                    faults.push(Fault::new(file, line, format!("{other} has {name} = {value}, too")));
                }
                Some(_) => {}
                None => {
                    defined.insert((name, value), (file, line));
                }
            }
        }
    }
    faults
}

/// Whether a file is a source of the program or its library, and not of tests.
pub fn is_of_the_program(file: &str) -> bool {
    let mut parts = file.split('/');
    parts.next() == Some("crates")
        && parts.next().is_some_and(|name| !OF_TESTS.contains(&name))
        && parts.next() == Some("src")
        && !is_of_tests(file)
}

#[derive(Default)]
struct Reader {
    /// Names, values and lines of constants of modules and functions.
    constants: Vec<(String, String, usize)>,
    literals: Vec<(String, usize)>,
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

    fn visit_item_const(&mut self, item: &ItemConst) {
        let value = item.expr.to_token_stream().to_string().replace('_', "");
        self.constants.push((item.ident.to_string(), value, item.span().start().line));
        visit::visit_item_const(self, item);
    }

    fn visit_lit(&mut self, literal: &Lit) {
        let text = literal.to_token_stream().to_string();
        let text = match literal {
            Lit::Int(number) => text.trim_end_matches(number.suffix()).replace('_', ""),
            _ => text.trim_start_matches('b').to_owned(),
        };
        self.literals.push((text, literal.span().start().line));
    }

    fn visit_attribute(&mut self, _: &syn::Attribute) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        faults(&Repository::of(files)).into_iter().map(|fault| fault.to_string()).collect()
    }

    const A: &str = "crates/a/src/a.rs";
    const B: &str = "crates/b/src/b.rs";

    #[test]
    fn one_name_and_value_in_two_files_is_found() {
        let files = [(A, "const LABEL: u64 = 1_000;"), (B, "fn f() {\n    const LABEL: u32 = 1000;\n}")];
        assert_eq!(found(&files), ["crates/b/src/b.rs:2: crates/a/src/a.rs has LABEL = 1000, too"]);
    }

    #[test]
    fn other_values_tests_durations_and_limits_of_their_own_are_let_alone() {
        for (one, other) in [
            ("const A: u64 = 1;", "const A: u64 = 2;"),
            ("const A: u64 = 1;", "#[cfg(test)]\nmod tests { const A: u64 = 1; }"),
            ("const A: Duration = Duration::from_secs(1);", "const A: Duration = Duration::from_secs(1);"),
            ("const BATCH: u64 = 1;", "const BATCH: u64 = 1;"),
            ("impl A { const A: u64 = 1; }", "impl B { const A: u64 = 1; }"),
        ] {
            assert_eq!(found(&[(A, one), (B, other)]), [""; 0], "{one} {other}");
        }
        let same = "const A: u64 = 1;";
        for file in
            ["crates/testkit/src/a.rs", "crates/b/tests/b.rs", "crates/b/src/b_tests.rs", "crates/b/src/b/tests.rs"]
        {
            assert_eq!(found(&[(A, same), (file, same)]), [""; 0], "{file}");
        }
        assert_eq!(found(&[(A, "const A: u64 = 1;\nfn f() { const A: u64 = 1; }")]), [""; 0]);
    }

    #[test]
    fn facts_are_written_where_they_are_named() {
        for text in ["const TYPE: u32 = 0o170_000;", "fn f(a: u32) -> bool {\n a & 0o170_000u32 == 1 }"] {
            let fault = ": 0o170000 is ubtrfs_format::posix::S_IFMT";
            assert!(found(&[(A, text)]).iter().any(|found| found.ends_with(fault)), "{text}");
            assert_eq!(found(&[(POSIX, text)]), [""; 0]);
        }
        let text = "const C: &[u8] = b\"security.capability\";";
        assert_eq!(
            found(&[(A, text)]),
            ["crates/a/src/a.rs:1: \"security.capability\" is ubtrfs::xattr_names::CAPABILITY"]
        );
        assert_eq!(found(&[(A, "fn f() { let mode = 0o100_644; }\n/// 0o170000")]), [""; 0]);
    }
}
