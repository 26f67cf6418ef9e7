//! Sequences that file systems with logs have got wrong, most of them by names that did not agree
//! (invariant 15): power may be cut after each of their operations.

use ubtrfs::{WriteAt, XattrMode};
use ubtrfs_simulator::words::{
    append, at, directory, exchange, fdatasync, file, fsync, link, path, remove_xattr, rename, rmdir, set_xattr,
    unlink, write,
};
use ubtrfs_simulator::{Operation, Stage, What, shrink};

/// Crash states of each sequence.
const STATES: usize = 60;

/// Asserts that no crash breaks a promise, after `committed` was committed and `operations` were
/// performed.
#[track_caller]
fn survive(committed: &[Operation], operations: &[Operation]) {
    let stage = Stage::new(committed).unwrap_or_else(|what| panic!("{what}"));
    if let Err(failure) = stage.run(operations, 1, STATES) {
        let shorter = shrink(operations, 100, &mut |some| stage.run(some, 1, STATES).is_err());
        let shorter = stage.run(&shorter, 1, STATES).err();
        panic!("{failure}\n\nshorter:\n{}", shorter.map_or(String::new(), |failure| failure.to_string()));
    }
}

fn directories() -> Vec<Operation> {
    vec![directory("A"), directory("B"), directory("C")]
}

fn with(committed: &[Operation]) -> Vec<Operation> {
    [directories(), committed.to_vec()].concat()
}

fn truncate(text: &str, size: u64) -> Operation {
    Operation::Truncate { what: at(text), size }
}

fn filled(text: &str) -> [Operation; 3] {
    [file(text), write(text, 0, 9000), set_xattr(text, "user.one", 1)]
}

fn joined(parts: &[&[Operation]]) -> Vec<Operation> {
    parts.concat()
}

#[test]
fn a_file_moved_into_a_synced_directory_has_one_name() {
    let committed = with(&filled("A/foo"));
    survive(&committed, &[rename("A/foo", "B/foo"), fsync("B")]);
    survive(&committed, &[rename("A/foo", "B/foo"), fsync("A")]);
    survive(&committed, &[rename("A/foo", "B/foo"), rename("B/foo", "C/foo"), fsync("B"), fsync("C")]);
    survive(&committed, &[rename("A/foo", "B/foo"), file("A/other"), fsync("A/other")]);
}

#[test]
fn a_name_taken_from_a_synced_file_is_not_lost() {
    let new = filled("A/foo");
    let take = [fsync("A/foo"), rename("c", "A/foo"), file("A/bar"), fsync("A/bar")];
    survive(&with(&[file("c")]), &joined(&[&new, &take]));
    survive(&directories(), &joined(&[&new, &[file("c")], &take]));
    survive(&directories(), &joined(&[&new, &[file("c"), fsync("c")], &take]));
}

#[test]
fn an_exchange_with_a_file_that_was_never_synced_loses_neither() {
    let begin = joined(&[&filled("A/foo"), &filled("B/foo"), &[fsync("A/foo"), exchange("A/foo", "B/foo")]]);
    for last in ["A/foo", "B/foo", "A", "B", ""] {
        survive(&directories(), &joined(&[&begin, &[fsync(last)]]));
    }
    let other = [file("C/other"), fsync("C/other")];
    survive(&directories(), &joined(&[&begin, &other]));
    survive(&directories(), &joined(&[&begin, &[exchange("A/foo", "B/foo")], &other]));
}

#[test]
fn overwriting_by_rename_leaves_the_old_or_the_new() {
    let replace = [file("A/tmp"), write("A/tmp", 0, 20_000), fsync("A/tmp"), rename("A/tmp", "A/foo"), fsync("A")];
    survive(&with(&filled("A/foo")), &replace);
    survive(&directories(), &joined(&[&filled("A/foo"), &replace]));
    survive(&directories(), &joined(&[&filled("A/foo"), &[fsync("A/foo")], &replace, &replace]));
    // Without the first fsync the new file may be empty after a crash, which is why programs make
    // it.
    let careless = [file("A/tmp"), write("A/tmp", 0, 20_000), rename("A/tmp", "A/foo"), fsync("A/foo")];
    survive(&with(&filled("A/foo")), &careless);
}

#[test]
fn a_file_that_was_replaced_does_not_reappear() {
    let committed = with(&joined(&[&filled("A/foo"), &filled("B/foo")]));
    for last in ["A/bar", "A", "B", ""] {
        survive(&committed, &[rename("B/foo", "A/foo"), fsync("A/foo"), rename("A/foo", "A/bar"), fsync(last)]);
    }
    survive(&committed, &[rename("B/foo", "A/foo"), fsync("A/foo"), unlink("A/foo"), fsync("B")]);
    survive(&committed, &[rename("B/foo", "A/foo"), fsync("A/foo"), rename("A/foo", "B/foo"), fsync("B/foo")]);
    survive(&committed, &[unlink("A/foo"), link("B/foo", "A/foo"), fsync("B/foo"), unlink("A/foo"), fsync("B/foo")]);
}

#[test]
fn chains_of_renames() {
    for between in [fsync("b"), fsync("c"), fsync(""), fsync("A")] {
        let chain = [rename("a", "b"), fsync("b"), rename("b", "c"), between.clone(), rename("c", "A/d"), between];
        survive(&with(&filled("a")), &chain);
        survive(&directories(), &joined(&[&filled("a"), &chain]));
    }
    let around = [rename("a", "x"), rename("b", "a"), rename("x", "b"), fsync("a"), fsync("b")];
    survive(&with(&joined(&[&filled("a"), &filled("b")])), &around);
}

#[test]
fn a_new_thing_takes_the_name_of_a_renamed_directory() {
    let committed = with(&filled("A/foo"));
    survive(&committed, &[rename("A", "D"), file("A"), write("A", 0, 100), fsync("A")]);
    survive(&committed, &[rename("A", "D"), directory("A"), file("A/foo"), fsync("A/foo")]);
    survive(&committed, &[rename("A", "B/D"), directory("A"), fsync("A"), file("A/foo"), fsync("A/foo")]);
    survive(&committed, &[rename("A", "D"), rename("B", "A"), fsync("A"), fsync("D")]);
}

#[test]
fn a_file_lives_though_its_directory_is_removed() {
    let committed = with(&filled("A/foo"));
    survive(&committed, &[rename("A/foo", "B/foo"), rmdir("A"), fsync("")]);
    survive(&committed, &[rename("A/foo", "foo"), rmdir("A"), fsync("")]);
    survive(&committed, &[rename("A/foo", "foo"), rmdir("A"), directory("A"), fsync("A")]);
    survive(&committed, &[fsync("A/foo"), rename("A/foo", "B/foo"), rmdir("A"), fsync("B")]);
    survive(&committed, &[write("A/foo", 0, 100), fsync("A/foo"), rename("A/foo", "B/foo"), rmdir("A"), fsync("")]);
}

#[test]
fn names_of_several_links() {
    let committed = with(&filled("A/foo"));
    survive(&committed, &[link("A/foo", "B/foo"), unlink("A/foo"), fsync("B/foo")]);
    survive(&committed, &[link("A/foo", "A/bar"), unlink("A/foo"), fsync("A")]);
    survive(&committed, &[link("A/foo", "B/foo"), unlink("A/foo"), file("A/foo"), fsync("A/foo")]);
    let two = with(&joined(&[&filled("A/foo"), &[link("A/foo", "B/foo"), link("A/foo", "A/bar")]]));
    survive(&two, &[unlink("A/bar"), fsync("A/foo"), unlink("B/foo"), fsync("A/foo")]);
    survive(&two, &[rename("A/bar", "C/bar"), rename("B/foo", "C/foo"), fsync("C")]);
    survive(&two, &[unlink("A/bar"), rename("B/foo", "A/bar"), fsync("A/bar")]);
    let many: Vec<Operation> = (0..300).map(|number| link("A/foo", &format!("B/{number:0>200}"))).collect();
    survive(&committed, &joined(&[&many, &[fsync("A/foo"), unlink(&format!("B/{:0>200}", 7)), fsync("A/foo")]]));
}

#[test]
fn a_name_is_used_again() {
    let committed = with(&filled("A/foo"));
    let again = [unlink("A/foo"), file("A/foo"), append("A/foo", 300), fsync("A/foo")];
    survive(&committed, &again);
    survive(&committed, &joined(&[&again, &again, &again]));
    survive(&committed, &[unlink("A/foo"), directory("A/foo"), fsync("A/foo")]);
    survive(&committed, &[unlink("A/foo"), fsync("A"), file("A/foo"), fsync("A")]);
}

#[test]
fn new_directories_with_their_contents() {
    let nested = [directory("D"), directory("D/E"), directory("D/E/F"), file("D/E/F/foo"), append("D/E/F/foo", 10)];
    for last in ["D/E/F/foo", "D/E/F", "D/E", "D", ""] {
        survive(&directories(), &joined(&[&nested, &[fsync(last)]]));
        survive(
            &directories(),
            &joined(&[&nested, &[rename("D/E", "B/E"), fsync(if last.len() > 3 { "B/E/F" } else { "D" })]]),
        );
    }
    survive(&directories(), &joined(&[&nested, &[fsync("D/E/F/foo"), file("D/E/bar"), fsync("D")]]));
}

#[test]
fn files_that_are_made_without_a_name() {
    let handle = What::Handle(0);
    let born = [
        Operation::Unnamed { dir: path("A"), mode: 0o100_600 },
        Operation::Write { what: handle.clone(), at: WriteAt::End, len: 7000, fill: 3, kill_privileges: false },
    ];
    let sync = [Operation::Fsync { what: handle.clone(), data_only: false }];
    let named = [Operation::Link { what: handle, path: path("A/foo") }];
    survive(&directories(), &joined(&[&born, &sync, &named, &sync]));
    survive(&directories(), &joined(&[&born, &sync, &named, &[fsync("A")]]));
    survive(&directories(), &joined(&[&born, &named, &sync, &[unlink("A/foo")], &sync]));
}

#[test]
fn sizes_that_shrink_and_grow() {
    let committed =
        with(&joined(&[&[file("A/foo"), write("A/foo", 0, 100_000)], &[file("A/small"), append("A/small", 500)]]));
    for text in ["A/foo", "A/small"] {
        survive(&committed, &[truncate(text, 0), fsync(text)]);
        survive(&committed, &[truncate(text, 0), fsync(text), truncate(text, 200_000), fsync(text)]);
        survive(&committed, &[truncate(text, 100), truncate(text, 200_000), fsync(text)]);
        survive(
            &committed,
            &[truncate(text, 30_000), append(text, 10), fsync(text), truncate(text, 90_000), fdatasync(text)],
        );
        let punch = Operation::Punch { what: at(text), offset: 100, len: 50_000 };
        survive(&committed, &[punch.clone(), fsync(text)]);
        survive(
            &committed,
            &[write(text, 4096, 30_000), fsync(text), punch, fdatasync(text), write(text, 8192, 10), fsync(text)],
        );
    }
    survive(
        &directories(),
        &[file("A/foo"), append("A/foo", 2000), fsync("A/foo"), append("A/foo", 9000), fsync("A/foo")],
    );
}

#[test]
fn xattrs_that_are_set_and_removed() {
    let committed = with(&filled("A/foo"));
    survive(&committed, &[remove_xattr("A/foo", "user.one"), fsync("A/foo")]);
    survive(
        &committed,
        &[set_xattr("A/foo", "user.two", 9), fsync("A/foo"), remove_xattr("A/foo", "user.two"), fsync("A/foo")],
    );
    survive(&committed, &[set_xattr("A", "user.two", 9), fsync("A"), remove_xattr("A", "user.two"), fdatasync("A")]);
    survive(&committed, &[append("A/foo", 10), fsync("A/foo"), rename("A/foo", "B/foo"), fsync("B")]);
    let name = ubtrfs_simulator::Name(b"user.large".to_vec());
    let large = Operation::SetXattr { what: at("A/foo"), name, len: 3500, fill: 3, mode: XattrMode::Set };
    survive(&committed, &[large, fsync("A/foo"), set_xattr("A/foo", "user.one", 7), fsync("A")]);
}

#[test]
fn a_thousand_appends() {
    let many: Vec<Operation> =
        (0..1000).flat_map(|number| [append("A/foo", 90 + number % 7), fsync("A/foo")]).collect();
    survive(&directories(), &joined(&[&[file("A/foo")], &many]));
}
