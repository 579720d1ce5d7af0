//! [`Notifier`]: what the service manager is told, on the socket that it names in `NOTIFY_SOCKET`.

use std::io;
use std::time::Duration;

use sd_notify::NotifyState;

/// The way to the service manager; every message is lost where there is none, as in a container.
#[derive(Debug, Clone, Copy, Default)]
pub struct Notifier;

// === impl Notifier ===

impl Notifier {
    /// The start is done.
    ///
    /// # Errors
    /// There is a service manager, and it can't be told.
    pub fn ready(self, status: &str) -> io::Result<()> {
        sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(&line(status))])
    }

    /// What a person sees as the service's status.
    ///
    /// # Errors
    /// As [`Notifier::ready`].
    pub fn status(self, status: &str) -> io::Result<()> {
        sd_notify::notify(&[NotifyState::Status(&line(status))])
    }

    /// Still alive.
    ///
    /// # Errors
    /// As [`Notifier::ready`].
    pub fn alive(self) -> io::Result<()> {
        sd_notify::notify(&[NotifyState::Watchdog])
    }

    /// The stop has begun.
    ///
    /// # Errors
    /// As [`Notifier::ready`].
    pub fn stopping(self) -> io::Result<()> {
        sd_notify::notify(&[NotifyState::Stopping])
    }

    /// How long the service manager waits for a sign of life; `None` where it doesn't.
    pub fn watchdog(self) -> Option<Duration> {
        sd_notify::watchdog_enabled().filter(|patience| !patience.is_zero())
    }
}

/// One line: another one would be another message.
fn line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
