//! What open files without names cost.
//!
//! * `unlinked_files close DIR [COUNT]` opens COUNT (193,519) unnamed files in DIR, in as many processes as the limit of open
//!   files asks for, closes them oldest first, and prints how long each 10,000 took, and what other calls on open
//!   unnamed files took meanwhile.
//! * `unlinked_files large DIR [EXTENTS]` makes a file of that many extents, unlinks it, closes it, and prints how long other
//!   operations in DIR took while it is freed, and while nothing is.
//! * `unlinked_files compare [COUNT] [ROUNDS]` does the first on new volumes of ubtrfs, the kernel's btrfs and XFS in turn.

#![allow(clippy::cast_precision_loss, reason = "figures to look at")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement ends where something fails")]

mod close;
mod compare;
mod large;
mod latency;

use std::path::Path;

/// As many as the report had that this goes back to.
const COUNT: usize = 193_519;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, usual: usize| arguments.get(at).map_or(usual, |text| text.parse().expect("a number"));
    match (arguments.first().map(String::as_str), arguments.get(1)) {
        (Some("close"), Some(dir)) => close::measure(Path::new(dir), number(2, COUNT)).print(),
        (Some("hold"), Some(dir)) => close::hold(Path::new(dir), number(2, 0)),
        (Some("large"), Some(dir)) => large::measure(Path::new(dir), number(2, 1_000_000) as u64),
        (Some("compare"), _) => compare::compare(number(1, COUNT), number(2, 2)),
        _ => eprintln!("unlinked_files close DIR [COUNT] | large DIR [EXTENTS] | compare [COUNT] [ROUNDS]"),
    }
}
