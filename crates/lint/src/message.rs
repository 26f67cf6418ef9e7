//! Checks the messages of commits: a subject of at most 72 columns, an empty line, and a body that
//! says why.

/// The columns that a subject may have, and those that a line of the body may have.
const SUBJECT: usize = 72;
const BODY: usize = 100;

/// Returns what is wrong with a message. Lines that begin with `#` do not count, since git leaves
/// them out.
pub fn faults(message: &str) -> Vec<String> {
    let lines: Vec<&str> = message.lines().filter(|line| !line.starts_with('#')).map(str::trim_end).collect();
    let subject = lines.first().copied().unwrap_or_default();
    // Git's own messages, and those of commits that will be squashed.
    if ["Merge ", "Revert \"", "fixup! ", "squash! "].iter().any(|start| subject.starts_with(start)) {
        return Vec::new();
    }
    let mut faults = Vec::new();
    let width = subject.chars().count();
    if width == 0 {
        faults.push("the subject is missing".to_owned());
    }
    if width > SUBJECT {
        faults.push(format!("the subject has {width} columns, more than {SUBJECT}"));
    }
    if subject.ends_with('.') {
        faults.push("the subject ends with a point".to_owned());
    }
    if lines.get(1).is_some_and(|line| !line.is_empty()) {
        faults.push("the line after the subject is not empty".to_owned());
    }
    if lines.iter().skip(2).all(|line| line.is_empty()) {
        faults.push("there is no body, which says why".to_owned());
    }
    let long = lines.iter().skip(2).filter(|line| line.contains(' ') && line.chars().count() > BODY);
    faults.extend(long.map(|line| format!("a line of the body has more than {BODY} columns: {line}")));
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_with_subject_and_body_are_sound() {
        assert!(faults(&format!("{}\n\nIt was longer.\n# a comment of git\n", "x".repeat(72))).is_empty());
        assert!(faults("Merge branch 'a'\n").is_empty());
    }

    #[test]
    fn faults_of_messages_are_named() {
        for (message, part) in [
            (format!("{}\n\nWhy.\n", "x".repeat(73)), "73 columns"),
            ("Change it\n".to_owned(), "no body"),
            ("Change it\n\n# only a comment\n".to_owned(), "no body"),
            ("Change it.\n\nWhy.\n".to_owned(), "ends with a point"),
            ("Change it\nWhy.\n".to_owned(), "is not empty"),
            ("\n\nWhy.\n".to_owned(), "is missing"),
            (format!("Change it\n\n{}\n", "why ".repeat(26)), "more than 100"),
        ] {
            let found = faults(&message);
            assert!(found.iter().any(|fault| fault.contains(part)), "{message}: {found:?}");
        }
    }
}
