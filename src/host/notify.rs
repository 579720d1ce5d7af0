//! Messages to the service manager, on the socket named in `NOTIFY_SOCKET`. Without a service
//! manager, as in a container, nothing is sent.

use std::io;
use std::time::Duration;

use sd_notify::NotifyState;

/// Reports that the start is done.
///
/// # Errors
/// The service manager's socket exists, and the message can't be sent.
pub fn ready(status: &str) -> io::Result<()> {
    sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(&line(status))])
}

/// Sets the status text that `systemctl status` prints.
///
/// # Errors
/// As [`ready`].
pub fn status(status: &str) -> io::Result<()> {
    sd_notify::notify(&[NotifyState::Status(&line(status))])
}

/// Reports that the process is alive.
///
/// # Errors
/// As [`ready`].
pub fn alive() -> io::Result<()> {
    sd_notify::notify(&[NotifyState::Watchdog])
}

/// Reports that the stop has begun.
///
/// # Errors
/// As [`ready`].
pub fn stopping() -> io::Result<()> {
    sd_notify::notify(&[NotifyState::Stopping])
}

/// The longest time between two keep-alive messages; `None` without a watchdog.
pub fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().filter(|longest| !longest.is_zero())
}

/// The first line of a text, because a second one would be a message of its own.
fn line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
