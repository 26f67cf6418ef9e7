//! What systemd is told of a server that it started (`Type=notify`): nothing where it didn't.

use sd_notify::NotifyState;

/// The mount can be used.
pub fn ready(what: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(&format!("{what} is mounted"))]);
}

/// The mount is over; the last commit may take a while.
pub fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("committing")]);
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("systemd was not told: {error}");
    }
}
