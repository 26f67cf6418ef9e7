//! The cost for other operations of freeing a file with very many extents.

use std::time::Duration;

use super::case::{Case, Scale};
use super::mix;
use crate::calls::Calls;
use crate::cleanup;
use crate::failure::Result;
use crate::histogram::Histogram;
use crate::peers::Mounted;
use crate::samples::{Better, Measured};

const SECTOR: u64 = 4096;

pub fn cases(scale: Scale) -> Vec<Case> {
    let extents = scale.pick(1000, 20_000, 100_000, 500_000);
    let watch = Duration::from_secs(scale.pick(1, 5, 10, 20));
    let run = move |mounted: &mut Mounted, measured: &mut Measured| measure(mounted, measured, extents, watch);
    let title = format!("operations while a file of {extents} extents is freed");
    vec![Case::new("large-file", format!("large-file-{extents}"), title, "fsync 99.9 % while freed", run).in_process()]
}

fn measure(mounted: &mut Mounted, measured: &mut Measured, extents: u64, watch: Duration) -> Result<()> {
    let calls = Calls::of(mounted);
    let root = calls.root()?;
    let dir = calls.mkdir(&root, "work")?;
    let file = calls.create(&root, "large")?;
    for number in 0..extents {
        // Writes every other sector, so that no two extents are adjacent.
        calls.write(&file, number * 2 * SECTOR, &[7; SECTOR as usize])?;
        if number.is_multiple_of(1000) {
            cleanup::check()?;
        }
    }
    mounted.sync()?;
    mix::add(measured, mix::watch(&calls, &dir, watch)?, "before");
    calls.unlink(&root, "large")?;
    let mut closing = Histogram::default();
    closing.time(|| calls.close(file));
    measured.add("close", closing.max(), "µs", Better::Lower);
    mix::add(measured, mix::watch(&calls, &dir, watch)?, "while freed");
    calls.close(dir);
    calls.close(root);
    Ok(())
}
