//! Notifications of systemd by a server that it started (`Type=notify`); otherwise none.

use sd_notify::NotifyState;

/// The mount can be used.
pub fn ready(what: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(&format!("{what} is mounted"))]);
}

/// The mount is over; the last commit may take a while.
pub fn stopping() {
    notify(&[NotifyState::Stopping, NotifyState::Status("committing")]);
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("systemd was not reported: {error}");
    }
}
