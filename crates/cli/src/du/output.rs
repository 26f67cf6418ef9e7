//! The output of `du`: a table as btrfs-progs print it, or JSON.

use std::io::{self, BufWriter, IsTerminal, Write};

use serde_json::json;

use super::used::Used;
use crate::json;
use crate::output;
use crate::show;
use crate::size::Unit;

/// Prints the usage of files and directories.
pub struct Output {
    out: BufWriter<output::Output>,
    is_terminal: bool,
    format: Format,
}

/// The format of the output.
pub enum Format {
    /// A table with sizes in this unit.
    Table(Unit),
    /// A JSON array. `is_empty` means that nothing was printed yet.
    Json { is_empty: bool },
}

impl Output {
    /// Begins the output.
    pub fn new(format: Format) -> Self {
        let is_terminal = io::stdout().is_terminal();
        let mut output = Self { out: BufWriter::new(output::Output::new()), is_terminal, format };
        if matches!(output.format, Format::Table(_)) {
            output.write(format!("{:>10}  {:>10}  {:>10}  Filename\n", "Total", "Exclusive", "Set shared").as_bytes());
        }
        output
    }

    /// Prints the usage of a path.
    pub fn row(&mut self, path: &[u8], used: &Used) {
        let (total, exclusive) = (used.total, used.exclusive());
        let line = match &mut self.format {
            Format::Table(unit) => {
                let set_shared = used.set_shared.map_or_else(|| "-".into(), |bytes| unit.show(bytes));
                let mut line =
                    format!("{:>10}  {:>10}  {set_shared:>10}  ", unit.show(total), unit.show(exclusive)).into_bytes();
                // On a terminal, characters that could confuse it are escaped.
                line.extend(if self.is_terminal { show::bytes(path).into_bytes() } else { path.to_vec() });
                line.push(b'\n');
                line
            }
            Format::Json { is_empty } => {
                let row = json!({
                    "path": json::name(path),
                    "total_bytes": total,
                    "exclusive_bytes": exclusive,
                    "set_shared_bytes": used.set_shared,
                });
                let separator = if std::mem::take(is_empty) { "[\n" } else { ",\n" };
                format!("{separator}{row}").into_bytes()
            }
        };
        self.write(&line);
    }

    /// Ends the output.
    pub fn finish(mut self) {
        if let Format::Json { is_empty } = self.format {
            self.write(if is_empty { b"[]\n" } else { b"\n]\n" });
        }
        let _ = self.out.flush();
    }

    fn write(&mut self, bytes: &[u8]) {
        let _ = self.out.write_all(bytes);
    }
}
