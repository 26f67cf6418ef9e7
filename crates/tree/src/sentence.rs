//! Messages of errors.

use std::error::Error;

/// Returns the messages of an error and its causes in one sentence, each once.
pub fn sentence(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = plain(&error.to_string());
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    plain(&text)
}

/// Removes the numbers that the standard library adds to the system's errors.
pub fn plain(text: &str) -> String {
    match text.rsplit_once(" (os error ") {
        Some((before, after)) if after.ends_with(')') => before.to_owned(),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn causes_are_said_once_and_without_numbers() {
        let missing = || io::Error::from_raw_os_error(2);
        assert_eq!(sentence(&missing()), "No such file or directory");
        let open = ubtrfs_volume::Error::Open { path: "/x".into(), source: missing() };
        assert_eq!(sentence(&open), "cannot open /x: No such file or directory");
        let allocator = crate::Error::allocator(missing());
        assert_eq!(sentence(&allocator), "space for a node: No such file or directory");
    }
}
