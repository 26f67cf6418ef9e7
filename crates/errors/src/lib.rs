//! Turns an error into text: the user reads the message of the error and those of its causes, in
//! one line.
//!
//! The `Display` of an error says what that error knows, and does not repeat its source. So code
//! that shows an error to the user, logs it or keeps its text calls [`sentence`].

use std::error::Error;

/// Any error, of another library or in words.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Returns the messages of an error and its causes. A message that is repeated appears once, since
/// other libraries include the message of the cause in their own.
pub fn sentence(error: &dyn Error) -> String {
    let mut text = plain(&error.to_string()).to_owned();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        let more = plain(&more);
        if !text.contains(more) {
            text.push_str(": ");
            text.push_str(more);
        }
        cause = error.source();
    }
    text
}

/// Returns the text without the error number that the standard library adds to errors of the
/// system.
fn plain(text: &str) -> &str {
    match text.rsplit_once(" (os error ") {
        Some((before, after)) if after.ends_with(')') => before,
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::io;

    use super::*;

    /// An error with this message and this cause.
    #[derive(Debug)]
    struct Said(&'static str, Option<BoxError>);

    impl fmt::Display for Said {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Said {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    fn of(said: &'static str, cause: impl Error + Send + Sync + 'static) -> Said {
        Said(said, Some(Box::new(cause)))
    }

    #[test]
    fn all_causes_are_said_without_numbers() {
        let missing = || io::Error::from_raw_os_error(2);
        assert_eq!(sentence(&missing()), "No such file or directory");
        assert_eq!(
            sentence(&of("mounting /x", of("/dev/fuse", missing()))),
            "mounting /x: /dev/fuse: No such file or directory"
        );
        assert_eq!(sentence(&io::Error::other(of("/x", missing()))), "/x: No such file or directory");
    }

    #[test]
    fn what_an_error_repeats_of_its_cause_is_said_once() {
        let repeats = of("TLS: No such file or directory (os error 2)", io::Error::from_raw_os_error(2));
        assert_eq!(sentence(&repeats), "TLS: No such file or directory");
        assert_eq!(sentence(&of("/x: no name", of("no name", Said("as if", None)))), "/x: no name: as if");
    }
}
