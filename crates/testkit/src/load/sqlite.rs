//! `SQLite`, one transaction after the other.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Programs;
use crate::run::{command, run};

/// How a database keeps its journal.
#[derive(Debug, Clone, Copy)]
pub struct Journal {
    mode: &'static str,
    synchronous: &'static str,
    /// How many transactions may be undone although they were reported. In the mode in which
    /// `SQLite` removes its journal to commit, it makes the removal durable with "extra" only; with
    /// "full" the next transaction does.
    lag: u64,
}

impl Journal {
    /// Returns its name in SQL.
    pub fn mode(self) -> &'static str {
        self.mode
    }
}

/// All modes in which a committed transaction is durable.
pub const JOURNALS: [Journal; 5] = [
    Journal { mode: "wal", synchronous: "full", lag: 0 },
    Journal { mode: "delete", synchronous: "extra", lag: 0 },
    Journal { mode: "delete", synchronous: "full", lag: 1 },
    Journal { mode: "truncate", synchronous: "full", lag: 0 },
    Journal { mode: "persist", synchronous: "full", lag: 0 },
];

/// The content of row `id`, in SQL.
const TEXT: &str = "replace(hex(zeroblob(id * 37 % 900)), '00', 'row ' || id)";

/// A database, and the last transaction that was reported as committed.
#[derive(Debug)]
pub struct Database {
    name: &'static str,
    committed: u64,
}

impl Database {
    /// Makes a database in the directory `place`.
    #[track_caller]
    pub fn new(place: &Path, name: &'static str) -> Self {
        let tables = "create table t (id integer primary key, text text); create index by_text on t (text);
            create table last (id integer); insert into last values (0);";
        run(command("sqlite3", &["-bail"]).arg(place.join(name)).arg(tables)).ok();
        Self { name, committed: 0 }
    }

    /// Commits transactions until the file system dies, which `dying` announces. Returns an earlier
    /// error.
    pub fn run(
        &mut self,
        place: &Path,
        journal: Journal,
        programs: &Programs,
        dying: &AtomicBool,
    ) -> Result<u64, String> {
        let before = self.committed;
        let mut line = command("sqlite3", &["-bail"]);
        line.arg(place.join(self.name)).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let pipes = programs.start(&mut line);
        let (mut input, output) = (pipes.input.expect("a pipe"), pipes.output.expect("a pipe"));
        let mut answers = BufReader::new(output).lines();
        let mut ask = |sql: &str| -> Option<String> {
            input.write_all(sql.as_bytes()).ok()?;
            answers.next()?.ok()
        };
        let pragmas = format!(
            "pragma synchronous={}; pragma wal_autocheckpoint=40; pragma journal_mode={};\n",
            journal.synchronous, journal.mode
        );
        // The interval of checkpoints has to be set before the mode.
        let mut answer = ask(&pragmas).and_then(|_| ask("\n"));
        if answer.as_deref() == Some(journal.mode) {
            loop {
                let id = self.committed + 1;
                let sql = format!(
                    "begin; insert into t select id, {TEXT} from (select {id} as id); update last set id = {id};
                    commit; select 'committed {id}';\n"
                );
                answer = ask(&sql);
                if answer != Some(format!("committed {id}")) {
                    break;
                }
                self.committed = id;
            }
        }
        if !dying.load(Ordering::SeqCst) {
            return Err(format!("{} {journal:?}: after {} it said {answer:?}", self.name, self.committed));
        }
        Ok(self.committed - before)
    }

    /// Returns what is wrong with the database, whose last mode was `journal`. Opening it repairs
    /// it as `SQLite` does.
    pub fn faults(&self, place: &Path, journal: Journal) -> Vec<String> {
        match self.judge(place, journal) {
            Ok(_) => Vec::new(),
            Err(fault) => vec![format!("{} {journal:?}, committed {}: {fault}", self.name, self.committed)],
        }
    }

    /// Takes the present content as committed.
    pub fn adopt(&mut self, place: &Path, journal: Journal) {
        self.committed = self.judge(place, journal).unwrap_or_else(|fault| panic!("{fault}"));
    }

    fn judge(&self, place: &Path, journal: Journal) -> Result<u64, String> {
        let sql = format!(
            "pragma integrity_check; select id from last; select coalesce(max(id), 0) from t; select count(*) from t;
            select count(*) from t where text <> {TEXT};"
        );
        let outcome = run(command("sqlite3", &["-bail"]).arg(place.join(self.name)).arg(sql));
        let lines: Vec<&str> = outcome.stdout.lines().collect();
        let [integrity, last, most, rows, wrong] = lines[..] else { return Err(outcome.report()) };
        let number = last.parse().map_err(|_| outcome.report())?;
        let whole = integrity == "ok" && last == most && last == rows && wrong == "0";
        if !outcome.success() || !whole || number + journal.lag < self.committed {
            return Err(outcome.report());
        }
        Ok(number)
    }
}
