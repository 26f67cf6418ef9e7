//! `SQLite` in its journal modes.

use std::fmt::Write as _;
use std::path::Path;

use super::workplace;
use crate::run::{command, run};

/// Rows that each journal mode gets.
const ROWS: usize = 5000;

/// Rows in one transaction.
const BATCH: usize = 250;

/// Fills a database per journal mode, changes and deletes rows, rolls back, and has its integrity
/// checked.
#[track_caller]
pub fn sqlite(dir: &Path) {
    let place = workplace(dir, "sqlite");
    for mode in ["delete", "truncate", "persist", "wal"] {
        let database = place.join(format!("{mode}.db"));
        let script = place.join(format!("{mode}.sql"));
        std::fs::write(&script, filling(mode)).expect("write a script");
        let sqlite = |sql: &str| {
            let outcome = run(command("sqlite3", &["-bail"]).arg(&database).arg(sql)).ok();
            outcome.stdout.trim().to_owned()
        };
        let set = sqlite(&format!(".read {}", script.display()));
        assert!(set.starts_with(mode), "journal mode {mode}: sqlite says {set}");
        assert_eq!(sqlite("pragma integrity_check"), "ok", "journal mode {mode}");
        let wanted = format!("{}|{}", ROWS * 9 / 10, ROWS * 3 / 10);
        let counted = sqlite("select count(*), sum(text like 'changed%') from t");
        assert_eq!(counted, wanted, "journal mode {mode}");
    }
}

/// Returns the script that fills a database. In the end it deletes every tenth row, and changes
/// those of the rest whose number leaves the remainder 1, 2 or 3.
fn filling(mode: &str) -> String {
    let mut sql = format!("pragma journal_mode={mode};\n");
    sql.push_str("create table t (id integer primary key, text text not null, noise blob);\n");
    sql.push_str("create index by_text on t (text);\n");
    for start in (0..ROWS).step_by(BATCH) {
        sql.push_str("begin;\n");
        for id in start..start + BATCH {
            let _ = writeln!(sql, "insert into t values ({id}, 'row {id}', randomblob({}));", id % 700);
        }
        sql.push_str("commit;\n");
    }
    sql.push_str("update t set text = 'changed ' || id where id % 10 in (1, 2, 3);\n");
    sql.push_str("begin; delete from t; rollback;\n");
    sql.push_str("delete from t where id % 10 = 0;\n");
    sql.push_str("vacuum;\n");
    sql
}
