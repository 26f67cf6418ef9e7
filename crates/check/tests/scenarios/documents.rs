//! Tests that the document about faults has all kinds, as the checker knows them.

use std::path::Path;

use ubtrfs_check::KINDS;

#[test]
fn the_document_describes_every_kind_of_fault() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/check.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, kinds) = text.split_once("## Kinds\n").unwrap();
    let documented: Vec<&str> = kinds.lines().filter(|line| line.starts_with("| `")).collect();
    let row = |about: &ubtrfs_check::About| {
        format!("| `{}` | {} | {} | {} |", about.name, about.level, about.mended_by.name(), about.means)
    };
    let known: Vec<String> = KINDS.iter().map(row).collect();
    let missing: Vec<&String> = known.iter().filter(|row| !documented.contains(&row.as_str())).collect();
    assert!(missing.is_empty(), "docs/check.md lacks the rows\n{missing:#?}");
    assert_eq!(documented.len(), known.len(), "docs/check.md has rows of kinds that do not exist");
}
