//! Licences, sources and versions of third-party crates are as `deny.toml` allows them.
//!
//! `cargo deny` reads the same file, and `make lint` runs it where it is installed. It takes
//! minutes to build and needs the network for its advisories, so this rule checks from the output
//! of `cargo metadata` what needs neither: each licence is in `licenses.allow`, each crate comes
//! from crates.io, and no crate is there in two versions except those in `bans.skip`, each of which
//! has a reason. An entry of `deny.toml` that nothing needs is a fault, too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::repository::{Fault, Repository};

const FILE: &str = "deny.toml";
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";
/// The targets of `graph.targets`, for which crates count.
const TARGETS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// What does not agree with `deny.toml` in the workspace that contains this crate.
pub fn faults(_: &Repository) -> Vec<Fault> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let fault = |what: String| vec![Fault::new(FILE, 1, what)];
    let text = match std::fs::read_to_string(root.join(FILE)) {
        Ok(text) => text,
        Err(error) => return fault(format!("can't be read: {error}")),
    };
    let mut all = Vec::new();
    for target in TARGETS {
        match packages(&root, target) {
            Ok(found) => all.extend(found),
            Err(what) => return fault(what),
        }
    }
    check(&Allowed::parse(&text), &all)
}

/// A third-party crate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    licence: String,
    source: String,
}

/// Returns the crates of which the workspace is built for a target.
fn packages(root: &Path, target: &str) -> Result<Vec<Package>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--format-version", "1", "--locked", "--all-features", "--filter-platform", target]);
    let output = command.current_dir(root).output().map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
    Ok(read(&metadata))
}

fn read(metadata: &Value) -> Vec<Package> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let used: BTreeSet<String> = list(&metadata["resolve"]["nodes"]).iter().map(|node| text(&node["id"])).collect();
    let others = list(&metadata["packages"]).into_iter().filter(|package| !package["source"].is_null());
    let package = |package: &Value| Package {
        name: text(&package["name"]),
        version: text(&package["version"]),
        licence: text(&package["license"]),
        source: text(&package["source"]),
    };
    others.filter(|it| used.contains(&text(&it["id"]))).map(|it| package(&it)).collect()
}

/// What `deny.toml` allows. Each entry of its lists is on a line of its own.
#[derive(Debug, Default)]
struct Allowed {
    /// Licences, and the lines that allow them.
    licences: BTreeMap<String, usize>,
    /// `name@version` of the entries with a reason, and their lines.
    versions: BTreeMap<String, usize>,
    /// Lines of entries without a reason.
    unreasoned: Vec<usize>,
}

impl Allowed {
    fn parse(text: &str) -> Self {
        let mut allowed = Self::default();
        let mut list = "";
        for (number, line) in (1..).zip(text.lines().map(str::trim)) {
            if let Some((name, "[")) = line.split_once(" = ") {
                list = name;
            } else if line == "]" {
                list = "";
            } else if let Some(entry) = line.strip_suffix(',') {
                let strings: Vec<&str> = entry.split('"').skip(1).step_by(2).collect();
                match (list, strings.as_slice()) {
                    ("allow", [licence]) => drop(allowed.licences.insert((*licence).to_owned(), number)),
                    ("skip", [version, reason]) if !reason.is_empty() => {
                        allowed.versions.insert((*version).to_owned(), number);
                    }
                    ("skip", _) => allowed.unreasoned.push(number),
                    _ => {}
                }
            }
        }
        allowed
    }
}

fn check(allowed: &Allowed, packages: &[Package]) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut fault = |line: usize, what: String| faults.push(Fault::new(FILE, line, what));
    let (mut versions, mut used) = (BTreeMap::<&str, BTreeSet<&str>>::new(), BTreeSet::new());
    for package in packages {
        let Package { name, version, licence, source } = package;
        versions.entry(name).or_default().insert(version);
        if source != CRATES_IO {
            fault(1, format!("{name} {version} comes from {source}"));
        }
        if !is_allowed(licence, allowed, &mut used) {
            fault(1, format!("{name} {version} has the licence '{licence}', which is not allowed"));
        }
    }
    let mut skipped = BTreeSet::new();
    for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        let listed = |version: &&&str| allowed.versions.contains_key(&format!("{name}@{version}"));
        skipped.extend(versions.iter().filter(listed).map(|version| format!("{name}@{version}")));
        let rest: Vec<&str> = versions.iter().filter(|version| !listed(version)).copied().collect();
        if rest.len() > 1 {
            fault(1, format!("{name} is there in the versions {}, and no reason says why", rest.join(" and ")));
        }
    }
    for (version, line) in allowed.versions.iter().filter(|(version, _)| !skipped.contains(*version)) {
        fault(*line, format!("{version} is no second version of a crate"));
    }
    for (licence, line) in allowed.licences.iter().filter(|(licence, _)| !used.contains(licence.as_str())) {
        fault(*line, format!("no crate needs the licence {licence}"));
    }
    for line in &allowed.unreasoned {
        fault(*line, "an entry has the form { crate = \"NAME@VERSION\", reason = \"…\" },".to_owned());
    }
    faults
}

/// Returns whether the allowed licences meet a licence expression, and notes in `used` which of
/// them the expression has.
fn is_allowed<'a>(licence: &'a str, allowed: &Allowed, used: &mut BTreeSet<&'a str>) -> bool {
    let licence = licence.trim();
    // `AND` binds more tightly than `OR`, which older crates write as `/`.
    if let Some(parts) = split(licence, &[" OR ", "/"]) {
        // Looks at all parts, since each allowed licence that occurs is needed.
        let met: Vec<bool> = parts.into_iter().map(|part| is_allowed(part, allowed, used)).collect();
        return met.contains(&true);
    }
    if let Some(parts) = split(licence, &[" AND "]) {
        return parts.into_iter().all(|part| is_allowed(part, allowed, used));
    }
    if let Some(inner) = licence.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        return is_allowed(inner, allowed, used);
    }
    let is_there = allowed.licences.contains_key(licence);
    if is_there {
        used.insert(licence);
    }
    is_there
}

/// Returns the parts of an expression that one of these words separates outside of parentheses.
fn split<'a>(expression: &'a str, words: &[&str]) -> Option<Vec<&'a str>> {
    let (mut parts, mut from, mut depth, mut at) = (Vec::new(), 0, 0, 0);
    while let Some(letter) = expression[at..].chars().next() {
        let word = words.iter().find(|word| depth == 0 && expression[at..].starts_with(**word));
        if let Some(word) = word {
            parts.push(&expression[from..at]);
            at += word.len();
            from = at;
            continue;
        }
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        at += letter.len_utf8();
    }
    parts.push(&expression[from..]);
    (parts.len() > 1).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DENY: &str = "[licenses]\nallow = [\n    \"MIT\",\n    \"BSD-3-Clause\",\n]\n[bans]\nskip = [\n    \
                        { crate = \"a@1.0.0\", reason = \"b wants it\" },\n]\n";

    fn package(name: &str, version: &str, licence: &str) -> Package {
        Package { name: name.into(), version: version.into(), licence: licence.into(), source: CRATES_IO.into() }
    }

    fn found(deny: &str, packages: &[Package]) -> Vec<String> {
        check(&Allowed::parse(deny), packages).into_iter().map(|fault| fault.to_string()).collect()
    }

    /// Crates that need every entry of [`DENY`].
    fn good() -> Vec<Package> {
        vec![
            package("a", "1.0.0", "MIT"),
            package("a", "2.0.0", "MIT OR Apache-2.0"),
            package("b", "1.0.0", "BSD-3-Clause"),
        ]
    }

    #[test]
    fn what_is_allowed_is_no_fault() {
        assert_eq!(found(DENY, &good()), [""; 0]);
        for licence in ["MIT/GPL-3.0", "(MIT OR X) AND BSD-3-Clause", "X OR (MIT AND BSD-3-Clause)"] {
            assert_eq!(found(DENY, &[good(), vec![package("c", "1.0.0", licence)]].concat()), [""; 0], "{licence}");
        }
    }

    #[test]
    fn other_licences_sources_and_versions_are_found() {
        for licence in ["GPL-3.0", "MIT AND GPL-3.0", "(X OR Y) AND MIT", ""] {
            let fault = format!("deny.toml:1: c 1.0.0 has the licence '{licence}', which is not allowed");
            assert_eq!(found(DENY, &[good(), vec![package("c", "1.0.0", licence)]].concat()), [fault]);
        }
        let elsewhere = Package { source: "git+https://example.org".into(), ..package("c", "1.0.0", "MIT") };
        let fault = "deny.toml:1: c 1.0.0 comes from git+https://example.org";
        assert_eq!(found(DENY, &[good(), vec![elsewhere]].concat()), [fault]);
        let fault = "deny.toml:1: b is there in the versions 1.0.0 and 2.0.0, and no reason says why";
        assert_eq!(found(DENY, &[good(), vec![package("b", "2.0.0", "MIT")]].concat()), [fault]);
    }

    #[test]
    fn what_is_listed_is_needed_and_has_a_reason() {
        let faults = found(DENY, &[package("b", "1.0.0", "MIT")]);
        assert_eq!(
            faults,
            [
                "deny.toml:8: a@1.0.0 is no second version of a crate",
                "deny.toml:4: no crate needs the licence BSD-3-Clause"
            ]
        );
        let fault = "deny.toml:2: an entry has the form { crate = \"NAME@VERSION\", reason = \"…\" },";
        assert_eq!(found("skip = [\n    { crate = \"a@1.0.0\" },\n]", &[]), [fault]);
    }

    #[test]
    fn only_crates_that_the_target_needs_count() {
        let json = r#"{"packages": [
            {"id": "a 1", "name": "a", "version": "1.0.0", "license": "MIT", "source": "x"},
            {"id": "w 1", "name": "w", "version": "1.0.0", "license": "MIT", "source": "x"},
            {"id": "us", "name": "us", "version": "1.0.0", "license": null, "source": null}],
            "resolve": {"nodes": [{"id": "a 1"}, {"id": "us"}]}}"#;
        let read = read(&serde_json::from_str(json).unwrap());
        assert_eq!(read.iter().map(|package| package.name.as_str()).collect::<Vec<_>>(), ["a"]);
    }
}
