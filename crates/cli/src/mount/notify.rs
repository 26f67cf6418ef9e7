//! Notifies systemd, if that has started the server (`Type=notify`).

use sd_notify::NotifyState;

/// Notifies that the mount can be used.
pub fn ready(what: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(&format!("{what} is mounted"))]);
}

/// Notifies that the mount has ended; the last commit may take a while.
pub fn stopping() {
    notify(&[NotifyState::Stopping, NotifyState::Status("committing")]);
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("systemd was not reported: {error}");
    }
}
