//! [`Notifier`]: messages to the service manager, on the socket named in `NOTIFY_SOCKET`.

use std::io;
use std::time::Duration;

use sd_notify::NotifyState;

/// The connection to the service manager. Without a service manager, as in a container, every
/// message is lost.
#[derive(Debug, Clone, Copy, Default)]
pub struct Notifier;

// === impl Notifier ===

impl Notifier {
    /// Reports that the start is done.
    ///
    /// # Errors
    /// The service manager's socket exists, and the message can't be sent.
    pub fn ready(self, status: &str) -> io::Result<()> {
        sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(&line(status))])
    }

    /// Sets the service's status, for people to read.
    ///
    /// # Errors
    /// As [`Notifier::ready`].
    pub fn status(self, status: &str) -> io::Result<()> {
        sd_notify::notify(&[NotifyState::Status(&line(status))])
    }

    /// Reports that the process is alive.
    ///
    /// # Errors
    /// As [`Notifier::ready`].
    pub fn alive(self) -> io::Result<()> {
        sd_notify::notify(&[NotifyState::Watchdog])
    }

    /// Reports that the stop has begun.
    ///
    /// # Errors
    /// As [`Notifier::ready`].
    pub fn stopping(self) -> io::Result<()> {
        sd_notify::notify(&[NotifyState::Stopping])
    }

    /// How long the service manager waits for a sign of life; `None` without a watchdog.
    pub fn watchdog(self) -> Option<Duration> {
        sd_notify::watchdog_enabled().filter(|patience| !patience.is_zero())
    }
}

/// The first line of a text. A second line would be a separate message.
fn line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
