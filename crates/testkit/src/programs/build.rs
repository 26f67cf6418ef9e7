//! tar, make and a C compiler.

use std::path::Path;

use super::workplace;
use crate::run::{command, run};
use crate::scratch::scratch_dir;

/// Unpacks an archive of a small C program in `dir`, builds and runs it, builds again (nothing to
/// do), and rebuilds after a change.
#[track_caller]
pub fn untar_and_build(dir: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/calculator");
    let outside = scratch_dir();
    let archive = outside.path().join("calculator.tar");
    run(command("tar", &["-cf"])
        .arg(&archive)
        .arg("-C")
        .arg(source.parent().expect("a directory above"))
        .arg("calculator"))
    .ok();
    let place = workplace(dir, "build");
    run(command("tar", &["-xpf"]).arg(&archive).current_dir(&place)).ok();
    run(command("tar", &["--compare", "-f"]).arg(&archive).current_dir(&place)).ok();

    let tree = place.join("calculator");
    let make = |args: &[&str]| run(command("make", args).current_dir(&tree)).ok();
    let calculate = |sum: &str| run(command("./calculator", &[sum]).current_dir(&tree)).ok().stdout;
    make(&["-j2"]);
    assert_eq!(calculate("2 * (3 + 4) - 5"), "9\n");
    let again = make(&[]);
    assert!(again.stdout.contains("up to date"), "{}", again.report());
    // The time is two seconds ahead, so that the clock's resolution plays no part.
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(2);
    let header = std::fs::File::options().append(true).open(tree.join("parse.h"));
    header.and_then(|file| file.set_modified(later)).expect("touch a header");
    let rebuilt = make(&[]);
    assert!(rebuilt.stdout.contains("parse.o"), "{}", rebuilt.report());
    make(&["clean"]);
    assert!(!tree.join("calculator").exists());
}
