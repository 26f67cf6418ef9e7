//! Limits the lines of the server's log. Without a limit users, who can cause as many errors as
//! they like, could fill the log of the system.

use std::collections::HashMap;
use std::fmt::{self, Debug, Write};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Each place in the program may log at most `LINES` messages within `WINDOW`, as in the kernel.
const LINES: u64 = 10;
const WINDOW: Duration = Duration::from_secs(5);
/// The length in bytes of the text that describes messages which were left out.
const MAX: usize = 160;

static PLACES: LazyLock<Places> = LazyLock::new(Places::default);

/// Leaves out the messages beyond the limit, and reports their number when the window is over and
/// something else is logged, or [at the end](say_what_was_left_out). Levels that the user must have
/// requested are not limited.
pub struct LogLimit;

impl<S: Subscriber> Layer<S> for LogLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let about = event.metadata();
        // The messages below report what was left out, so their number is limited already.
        if *about.level() > Level::INFO || about.module_path() == Some(module_path!()) {
            return true;
        }
        let now = Instant::now();
        PLACES.ended(now).iter().for_each(LeftOut::say);
        let taken = PLACES.take(about.callsite(), *about.level(), now);
        if taken == Taken::Last {
            // The lock is not held here, since the types of errors format themselves.
            PLACES.describe(&about.callsite(), message(event));
        }
        taken != Taken::LeftOut
    }
}

/// Reports what was left out so far.
pub fn say_what_was_left_out() {
    PLACES.all().iter().for_each(LeftOut::say);
}

/// The places in the program that log messages.
#[derive(Default)]
struct Places(Mutex<HashMap<Identifier, Place>>);

struct Place {
    began: Instant,
    lines: u64,
    left_out: LeftOut,
}

/// Messages that were left out.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LeftOut {
    level: Level,
    /// The text of the last message that was shown.
    like: String,
    count: u64,
}

/// What happens to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Shown,
    /// The message is shown, and further ones in the window are not.
    Last,
    LeftOut,
}

impl Places {
    /// Counts a message from this place.
    fn take(&self, from: Identifier, level: Level, now: Instant) -> Taken {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places.entry(from).or_insert_with(|| Place {
            began: now,
            lines: 0,
            left_out: LeftOut { level, like: String::new(), count: 0 },
        });
        if place.is_over(now) {
            (place.began, place.lines) = (now, 0);
        }
        if place.lines == LINES {
            place.left_out.count += 1;
            return Taken::LeftOut;
        }
        place.lines += 1;
        if place.lines == LINES { Taken::Last } else { Taken::Shown }
    }

    /// Stores the text of the last message of this place that is shown, as an example of those that
    /// are left out.
    fn describe(&self, from: &Identifier, message: String) {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = places.get_mut(from) {
            place.left_out.like = message;
        }
    }

    /// Returns what was left out in windows that have ended, and clears it.
    fn ended(&self, now: Instant) -> Vec<LeftOut> {
        self.left_out(|place| place.is_over(now))
    }

    fn all(&self) -> Vec<LeftOut> {
        self.left_out(|_| true)
    }

    fn left_out(&self, which: impl Fn(&Place) -> bool) -> Vec<LeftOut> {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let some = places.values_mut().filter(|place| place.left_out.count > 0 && which(place));
        some.map(|place| {
            let left_out = place.left_out.clone();
            place.left_out.count = 0;
            left_out
        })
        .collect()
    }
}

impl Place {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.began) >= WINDOW
    }
}

impl LeftOut {
    fn say(&self) {
        let Self { level, like, count } = self;
        match *level {
            Level::ERROR => tracing::error!("{count} more were left out: {like}"),
            Level::WARN => tracing::warn!("{count} more were left out: {like}"),
            _ => tracing::info!("{count} more were left out: {like}"),
        }
    }
}

/// Returns the text of a message, without its other fields.
fn message(event: &Event<'_>) -> String {
    struct Text(String);

    impl Visit for Text {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            if field.name() == "message" {
                // An error means that the text has its full length.
                let _ = write!(Short(&mut self.0), "{value:?}");
            }
        }
    }

    let mut text = Text(String::new());
    event.record(&mut text);
    text.0
}

/// A writer that takes no more than [`MAX`] bytes.
struct Short<'a>(&'a mut String);

impl Write for Short<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = MAX - self.0.len().min(MAX);
        let end = (0..=room.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
        self.0.push_str(&text[..end]);
        if end < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use tracing::callsite::{Callsite, Identifier};
    use tracing::subscriber::Interest;
    use tracing::{Metadata, metadata};

    use super::*;

    struct From(u8);

    static FROM: [From; 2] = [From(0), From(1)];
    static ABOUT: Metadata<'static> = metadata! {
        name: "", target: "", level: Level::WARN, fields: &[], callsite: &FROM[0], kind: metadata::Kind::EVENT,
    };

    impl Callsite for From {
        fn set_interest(&self, _: Interest) {
            let _ = self.0;
        }

        fn metadata(&self) -> &Metadata<'_> {
            &ABOUT
        }
    }

    #[test]
    fn each_place_has_its_lines_in_a_window_and_all_others_are_counted() {
        let (places, start) = (Places::default(), Instant::now());
        let [flood, calm] = [0, 1].map(|at| Identifier(&FROM[at]));
        let take = |from: &Identifier, millis| {
            let taken = places.take(from.clone(), Level::WARN, start + Duration::from_millis(millis));
            if taken == Taken::Last {
                places.describe(from, "too much".into());
            }
            taken != Taken::LeftOut
        };
        assert_eq!((0..1000).filter(|at| take(&flood, *at)).count(), 10);
        // Messages of other places are shown.
        assert!(take(&calm, 1000));
        assert!(!take(&flood, 4999));
        assert_eq!(places.ended(start + Duration::from_millis(4999)), []);
        let left_out = LeftOut { level: Level::WARN, like: "too much".into(), count: 991 };
        assert_eq!(places.ended(start + WINDOW), std::slice::from_ref(&left_out));
        assert_eq!(places.all(), []);
        // The next window.
        assert_eq!((5000..6000).filter(|at| take(&flood, *at)).count(), 10);
        assert!(take(&calm, 6000));
        assert_eq!(places.all(), [LeftOut { count: 990, ..left_out }]);
        assert_eq!(places.all(), []);
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        let mut text = String::new();
        assert!(write!(Short(&mut text), "{}é", "x".repeat(MAX - 1)).is_err());
        assert_eq!(text.len(), MAX - 1);
    }
}
