//! [`LoggedErrors`]: the errors of an interactive command's log, for its summary.

use std::sync::{Arc, Mutex, PoisonError};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{DefaultFields, Writer};
use tracing_subscriber::layer::Context;

/// The most errors that [`LoggedErrors`] keeps.
const MOST_ERRORS: usize = 20;

/// The first errors of the log, for a summary that must not leave them out.
#[derive(Debug, Clone, Default)]
pub(super) struct LoggedErrors(Arc<Mutex<Vec<String>>>);

// === impl LoggedErrors ===

impl LoggedErrors {
    /// The errors so far, each as the log has it.
    pub(super) fn sentences(&self) -> Vec<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl<S: Subscriber> Layer<S> for LoggedErrors {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() != Level::ERROR {
            return;
        }
        let mut text = String::new();
        let formatted = DefaultFields::new().format_fields(Writer::new(&mut text), event);
        let mut errors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if formatted.is_ok() && errors.len() < MOST_ERRORS && !errors.contains(&text) {
            errors.push(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn the_errors_of_the_log_are_kept_once() {
        let errors = LoggedErrors::default();
        let subscriber = tracing_subscriber::registry().with(errors.clone());
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..2 {
                tracing::error!("can't write {}", "a/cpuset.cpus");
                tracing::warn!("drift");
            }
            (0..MOST_ERRORS).for_each(|number| tracing::error!("{number}"));
        });
        let kept = errors.sentences();
        assert_eq!(
            (kept[0].as_str(), kept[1].as_str(), kept.len()),
            ("can't write a/cpuset.cpus", "0", MOST_ERRORS)
        );
    }
}
