//! Processes, as `/proc` shows them.

/// When a process started, in the clock ticks of the kernel: the 22nd field of its `stat`, the
/// second of which (the name, in parentheses) may have any characters.
pub fn started(pid: &str) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_process_has_started_once() {
        let own = super::started("self");
        assert!(own.is_some());
        assert_eq!(own, super::started(&std::process::id().to_string()));
        assert_eq!(super::started("0"), None);
    }
}
