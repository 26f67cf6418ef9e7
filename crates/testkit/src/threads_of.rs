//! Shows what the threads of a process wait for, when it does not end though it should.

use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Returns a line for each thread (its name and its state), and below it the thread's stack in the
/// kernel, as far as root may see that. Empty if there is no such process.
pub fn threads_of(process: u32) -> String {
    let mut said = String::new();
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    for thread in threads {
        let read = |name| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        let state = state_of(&thread.path()).map_or_else(|| "gone".to_owned(), String::from);
        let _ = writeln!(said, "{}: {state}", read("comm").trim_end());
        for line in read("stack").lines() {
            let _ = writeln!(said, "    {}", line.trim_start_matches("[<0>] "));
        }
    }
    said
}

/// Returns the letter of a thread's state (`S`: it sleeps, `T`: it is stopped), or `None` if it has
/// ended.
pub fn state_of(thread: &Path) -> Option<char> {
    let stat = fs::read_to_string(thread.join("stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn each_thread_is_named_with_its_state() {
        let (runs, is_running) = channel();
        let park = move || {
            runs.send(()).unwrap();
            thread::park();
        };
        let thread = thread::Builder::new().name("is parked".into()).spawn(park).unwrap();
        is_running.recv().unwrap();
        let said = threads_of(std::process::id());
        thread.thread().unpark();
        thread.join().unwrap();
        assert!(said.lines().any(|line| line.starts_with("is parked: ")), "{said}");
        assert_eq!(threads_of(u32::MAX), "");
    }
}
