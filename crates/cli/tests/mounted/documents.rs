//! Tests that the commands in README.md, the manual and other documents work as they are written.
//!
//! A comment before each block of code says whether it is run: `<!-- run -->`, `<!-- run: COMMANDS
//! -->` with commands that prepare it, or `<!-- not run: WHY -->`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run_within};
use ubtrfs_testkit::scratch::scratch_dir;

use crate::harness::FUSE;

/// Documents and directories of documents, each with the least number of its blocks that are run.
const DOCUMENTS: [(&str, usize); 4] = [("README.md", 1), ("docs/tour.md", 5), ("docs/man", 5), ("docs/images.md", 7)];
const TIMEOUT: Duration = Duration::from_secs(120);

/// Commands before each block: the content of /mnt outside stays as it is, and status 1 of diff(1)
/// is no failure.
const BEFORE: &str = r#"
    set -euo pipefail
    mount -t tmpfs none /mnt
    trap 'cd /; if [ "$(stat -f -c %T /mnt)" != tmpfs ]; then command ubtrfs umount /mnt; fi' EXIT
    ubtrfs() { command ubtrfs "$@" || { local status=$?; [ "$1 $status" = "diff 1" ]; }; }
"#;

/// Returns the text of a document, or of all documents in a directory.
fn texts(name: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    if path.is_dir() {
        let files = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        files.map(|file| fs::read_to_string(file).unwrap()).collect()
    } else {
        vec![fs::read_to_string(path).unwrap()]
    }
}

/// A block of code, and the comment before it.
struct Block {
    marker: Option<String>,
    code: String,
}

/// Returns the blocks of a document that are not programs.
fn blocks(document: &str) -> Vec<Block> {
    let (mut found, mut marker, mut code) = (Vec::new(), None, None);
    for event in Parser::new_ext(document, Options::ENABLE_TABLES) {
        match event {
            Event::Html(text) => marker = Some(marker.take().unwrap_or_default() + &*text),
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))) if &*language == "rust" => {}
            Event::Start(Tag::CodeBlock(_)) => code = Some(String::new()),
            Event::Text(text) => {
                if let Some(code) = &mut code {
                    code.push_str(&text);
                } else {
                    marker = None;
                }
            }
            Event::End(TagEnd::CodeBlock) => {
                found.extend(code.take().map(|code| Block { marker: marker.take(), code }));
            }
            _ => {}
        }
    }
    found
}

#[test]
fn commands_of_the_documents_work_as_typed() {
    require!(Need::Root, FUSE, Need::Tool("unshare"), Need::Tool("bash"));
    let programs = scratch_dir();
    for name in ["ubtrfs", "fsck.ubtrfs", "mkfs.ubtrfs"] {
        symlink(env!("CARGO_BIN_EXE_ubtrfs"), programs.path().join(name)).unwrap();
    }
    let path = format!("{}:{}", programs.path().display(), std::env::var("PATH").unwrap());
    for (name, at_least) in DOCUMENTS {
        let mut count = 0;
        for Block { marker, code } in texts(name).iter().flat_map(|text| blocks(text)) {
            let said =
                marker.as_deref().map(str::trim).and_then(|text| text.strip_prefix("<!-- ")?.strip_suffix(" -->"));
            let before = match said {
                Some("run") => "",
                Some(text) if text.starts_with("not run: ") => continue,
                Some(text) if text.starts_with("run: ") => &text["run: ".len()..],
                _ => panic!("{name}: nothing says whether this is run:\n{code}"),
            };
            let dir = scratch_dir();
            let script = format!("{BEFORE}\n{before}\n{code}");
            let mut line = command("unshare", &["--mount", "--propagation", "private", "bash", "-c", &script]);
            let outcome = run_within(line.current_dir(dir.path()).env("PATH", &path), TIMEOUT);
            assert!(outcome.success(), "{name}:\n{code}\n{}", outcome.report());
            count += 1;
        }
        assert!(count >= at_least, "{name}: {count} blocks were run");
    }
}
