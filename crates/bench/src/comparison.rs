//! The peers that are compared with each other.

use std::fmt::Write;

use crate::samples::{CaseFacts, Results};
use crate::stats::{Summary, ratios, summary};

/// The peers that are ubtrfs. The first of them that was measured is compared with all others.
const OURS: [&str; 3] = ["ubtrfs", "ubtrfs-loop", "library"];
/// The kernel's btrfs with the same backing as ubtrfs: neither has the page cache of the file
/// system below.
pub const EQUAL: &str = "btrfs-direct";
/// The kernel's btrfs, which uses the page cache of the file system below.
pub const BUFFERED: &str = "btrfs";
/// The bound of FUSE.
pub const BOUND: &str = "null";

/// Returns the peer with which others are compared.
pub fn ours(results: &Results) -> Option<&'static str> {
    OURS.into_iter().find(|name| results.peers.iter().any(|peer| peer.name == *name))
}

/// Returns the other peers that have a headline figure, the most important first.
pub fn others(results: &Results) -> Vec<&str> {
    let ours = ours(results);
    let measured = |peer: &&str| {
        Some(*peer) != ours
            && results.cases.iter().any(|case| !results.values(&case.name, peer, &case.headline).is_empty())
    };
    let mut peers: Vec<&str> = results.peers.iter().map(|peer| peer.name.as_str()).filter(measured).collect();
    let first = [EQUAL, BUFFERED, BOUND];
    peers.sort_by_key(|peer| first.iter().position(|other| other == peer).unwrap_or(first.len()));
    peers
}

/// Returns by which factor the headline figure of `peer` is better than that of `base`, in the same
/// round.
pub fn ratio(results: &Results, case: &CaseFacts, peer: &str, base: &str) -> Option<Summary> {
    ratio_of(results, &case.name, &case.headline, peer, base)
}

/// Returns by which factor a figure of a case on `peer` is better than that on `base`, in the same
/// round.
pub fn ratio_of(results: &Results, case: &str, figure: &str, peer: &str, base: &str) -> Option<Summary> {
    let (_, better) = results.kind(case, figure)?;
    let of = |peer: &str| results.values(case, peer, figure);
    summary(&ratios(&of(peer), &of(base), better))
}

/// Returns the meaning of this run's figures, in short lines.
pub fn legend(results: &Results) -> String {
    let mut text = String::from("Medians (least–most).\n");
    let (Some(ours), others) = (ours(results), others(results)) else { return text };
    if !others.is_empty() {
        let _ = writeln!(text, "Other peers: median, and by how many times (×) {ours} is better in the same round.");
    }
    let about = [
        (EQUAL, "has the same backing as ubtrfs"),
        (BUFFERED, "reads and writes the page cache of the file system below"),
        (BOUND, "is the bound of FUSE"),
    ];
    for (peer, what) in about.into_iter().filter(|(peer, _)| others.contains(peer)) {
        let _ = writeln!(text, "{peer} {what}.");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::tests::example;

    #[test]
    fn peers_with_equal_backing_come_first() {
        let mut results = example(&[1.0]);
        results.peers.reverse();
        assert_eq!((ours(&results), others(&results)), (Some("ubtrfs"), vec![EQUAL, BUFFERED, BOUND]));
        assert!(legend(&results).contains("btrfs-direct has the same backing"));
        results.peers.retain(|peer| peer.name == BOUND);
        assert_eq!((ours(&results), others(&results)), (None, vec![BOUND]));
        assert_eq!(legend(&results), "Medians (least–most).\n");
    }
}
