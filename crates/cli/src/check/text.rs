//! The report of a check as text: a line for each kind of fault, with what it means and what
//! corrects it.

use ubtrfs_check::{Fault, FaultKind, Mending, Report};

use crate::size::show_size;

/// How many places of one kind of fault are named besides the first.
const MAX_PLACES: usize = 5;

/// Whether a warning is about stale free space. `mkfs.btrfs` leaves such remains on sound volumes
/// of several devices.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "a filter of references")]
pub fn is_left_by_mkfs(warning: &&Fault) -> bool {
    matches!(warning.kind, FaultKind::FreeSpaceStale)
}

/// Returns the report as text, with the extents of this subvolume and the quota groups, if these
/// are to be listed.
pub fn as_text(report: &Report, extents_of: Option<u64>, lists_qgroups: bool) -> String {
    let mut lines = Vec::new();
    if let Some(subvolume) = extents_of {
        lines.extend(extents(report, subvolume));
    }
    if lists_qgroups {
        lines.extend(qgroups(report));
    }
    lines.extend(shown(report.faults.iter(), "fault"));
    let more = |count: u64, kept: usize, what: &str| {
        (count > kept as u64).then(|| format!("… and {} more {what}", count - kept as u64))
    };
    lines.extend(more(report.fault_count, report.faults.len(), "faults"));
    // The text omits these warnings; programs get them by `--json`.
    let reported = report.warnings.iter().filter(|warning| !is_left_by_mkfs(warning));
    lines.extend(shown(reported, "warning"));
    lines.extend(more(report.warning_count, report.warnings.len(), "warnings"));
    lines.extend(report.not_compared.iter().map(|what| format!("not compared, because of the faults: {what}")));
    let stats = &report.stats;
    lines.push(format!(
        "{} trees, {} blocks, {} extents, {} subvolumes, {} inodes, {} names, {} of data compared",
        stats.trees,
        stats.blocks,
        stats.extents,
        stats.subvolumes,
        stats.inodes,
        stats.entries,
        show_size(stats.data_bytes)
    ));
    if stats.has_log {
        let log = &stats.log;
        lines.push(format!(
            "the volume holds a log, which the next mount replays: {} blocks, {} subvolumes, {} inodes, {} names, {} extents, {} of data",
            log.blocks,
            log.subvolumes,
            log.inodes,
            log.entries,
            log.extents,
            show_size(log.data_bytes)
        ));
    }
    lines.push(match report.fault_count {
        0 => "no fault found".into(),
        1 => "1 fault found".into(),
        count => format!("{count} faults found"),
    });
    lines.join("\n") + "\n"
}

/// Returns the lines about faults of the same kind and level, the worst first: how many there are,
/// the first of them, where others are, what they mean, and what corrects them.
fn shown<'a>(faults: impl Iterator<Item = &'a Fault>, what: &str) -> Vec<String> {
    let mut kinds: Vec<Vec<&Fault>> = Vec::new();
    for fault in faults {
        let is_alike = |other: &&Fault| (other.kind.name(), other.level()) == (fault.kind.name(), fault.level());
        match kinds.iter_mut().find(|kind| kind.first().is_some_and(is_alike)) {
            Some(alike) => alike.push(fault),
            None => kinds.push(vec![fault]),
        }
    }
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.first().map(|fault| fault.level())));
    let mut lines = Vec::new();
    for alike in kinds {
        let Some((first, others)) = alike.split_first() else { continue };
        lines.push(format!("{what}: {first}{}", rest(others)));
        let (level, means) = (first.level(), first.kind.means());
        lines.push(format!("  {level}: {means} {}", advice(first.kind.mended_by())));
    }
    lines
}

/// Says how many other faults of the kind there are, and where.
fn rest(others: &[&Fault]) -> String {
    if others.is_empty() {
        return String::new();
    }
    let paths = |fault: &&Fault| {
        let place = &fault.place;
        let own = place.path.iter().map(|path| format!("{}{path}", place.subvolume.as_deref().unwrap_or_default()));
        own.chain(place.files.iter().cloned()).collect::<Vec<_>>()
    };
    let mut named: Vec<String> = Vec::new();
    for path in others.iter().flat_map(paths) {
        if named.len() < MAX_PLACES && !named.contains(&path) {
            named.push(path);
        }
    }
    let addresses = || others.iter().filter_map(|fault| fault.place.address);
    let range = addresses().min().zip(addresses().max());
    let mut places: Vec<String> = named.into_iter().map(|path| format!("\"{path}\"")).collect();
    places.extend(range.map(|(first, last)| format!("addresses from {first} to {last}")));
    let at = if places.is_empty() { String::new() } else { format!(", at {}", places.join(", ")) };
    format!("; and {} more of this kind{at}", others.len())
}

/// What to do, by what corrects a fault.
fn advice(mending: Mending) -> &'static str {
    match mending {
        Mending::Nothing => "Nothing has to be done.",
        Mending::Mount => "The next mount corrects it.",
        Mending::Scrub => "'ubtrfs scrub' rewrites it from what is good.",
        Mending::Repair => "'ubtrfs check --repair' shows what it can correct.",
        Mending::SuperRecover => "'ubtrfs rescue super-recover' puts the primary superblock back from a copy.",
        Mending::ZeroLog => "'ubtrfs rescue zero-log' gives the log up.",
        Mending::Device => "Name all devices; 'ubtrfs replace' puts a new one into the place of one that is lost.",
        Mending::QuotaRescan => "'btrfs quota rescan', on a mount by the kernel, counts it again.",
        Mending::SetDefault => "'ubtrfs subvolume set-default' names another one; mount with subvolid=5 first.",
        Mending::Backup => "Get the files from a backup; 'ubtrfs restore' copies what can be read.",
    }
}

fn extents(report: &Report, subvolume: u64) -> Vec<String> {
    let mut lines = vec![format!("extents of subvolume {subvolume}: address, bytes, subvolumes that share it")];
    lines.extend(report.extents.iter().map(|extent| {
        let ids: Vec<String> = extent.subvolumes.iter().map(ToString::to_string).collect();
        format!("{:>16} {:>12} {}", extent.address, extent.length, ids.join(","))
    }));
    lines
}

fn qgroups(report: &Report) -> Vec<String> {
    let mut lines = vec!["quota group, referenced by its record and by the trees, exclusive by both".to_owned()];
    lines.extend(report.qgroups.iter().map(|group| {
        let differs = (group.referenced, group.exclusive) != (group.referenced_found, group.exclusive_found);
        let numbers = [group.referenced, group.referenced_found, group.exclusive, group.exclusive_found];
        let [referenced, found, exclusive, exclusive_found] = numbers;
        let mark = if differs { "  differs" } else { "" };
        format!("{:<12} {referenced:>14} {found:>14} {exclusive:>14} {exclusive_found:>14}{mark}", group.qgroup)
    }));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use ubtrfs_check::Location;

    fn fault(kind: FaultKind, path: &str) -> Fault {
        Fault { kind, place: Location { path: Some(path.to_owned()), ..Location::default() } }
    }

    #[test]
    fn faults_of_one_kind_are_one_line_with_their_number_and_paths_the_worst_first() {
        let mut faults: Vec<Fault> = (0..40)
            .map(|number| fault(FaultKind::DirectorySize { found: number, expected: 3 }, &format!("/{number}")))
            .collect();
        faults.push(fault(FaultKind::EntryWithoutInode { name: "n".to_owned(), inode: 300 }, "/dir"));
        let report = Report { fault_count: faults.len() as u64, faults, ..Report::default() };
        let text = as_text(&report, None, false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 6, "{text}");
        assert!(lines[0].starts_with("fault: \"/dir\": the entry \"n\""), "{text}");
        assert!(lines[1].starts_with("  content: ") && lines[1].contains("check --repair"), "{text}");
        assert!(lines[2].ends_with("; and 39 more of this kind, at \"/1\", \"/2\", \"/3\", \"/4\", \"/5\""), "{text}");
        assert!(lines[3].starts_with("  names: "), "{text}");
        assert_eq!(lines[5], "41 faults found");
    }
}
