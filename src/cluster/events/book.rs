//! [`Book`]: decides whether news become a new Event, a higher count of an Event, or nothing.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::details::EventDetails;

/// The limit on Events per pod and reason. Further notes raise the count of the last Event.
const NOTES_PER_REASON: usize = 4;

/// The longest time until a higher count is written.
const COUNT_AGAIN: Duration = Duration::from_secs(60);

/// The limit on remembered pairs of pod and reason. Above it, the book forgets all Events.
const LONGEST_BOOK: usize = 4096;

/// The next write to the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventWrite {
    /// Create an Event. After the write, the caller passes the Event's name to [`Book::created`].
    Create,
    /// Raise the count of an existing Event.
    Count {
        /// The Event's name.
        event: String,
        /// The total number of occurrences.
        count: u32,
    },
    /// Write nothing yet. The occurrence is counted, and the count is written later.
    Nothing,
    /// Write nothing, because the node has reached the limit of writes per minute.
    Drop,
}

/// An Event, and the counts of its occurrences.
#[derive(Debug, Clone)]
struct BookEntry {
    news: EventDetails,
    /// The Event's name; `None` until the creation succeeded.
    event: Option<String>,
    count: u32,
    /// The last written count.
    written: u32,
    written_at: Instant,
    /// The time of the last occurrence.
    last: Instant,
}

/// The recent Events. The type does no I/O and reads no clock.
#[derive(Debug)]
pub struct Book {
    window: Duration,
    per_minute: f64,
    /// The number of writes that the limit currently allows.
    allowance: f64,
    counted_at: Option<Instant>,
    /// The Events by the pod's uid and the reason.
    entries: HashMap<(String, &'static str), Vec<BookEntry>>,
}

// === impl Book ===

impl Book {
    /// News repeated within `window` count on the same Event. The limit of writes per minute is
    /// `per_minute`.
    pub fn new(window: Duration, per_minute: u32) -> Self {
        let per_minute = f64::from(per_minute);
        Self {
            window,
            per_minute,
            allowance: per_minute,
            counted_at: None,
            entries: HashMap::new(),
        }
    }

    /// Records news, and returns the write that follows.
    pub fn note(&mut self, news: &EventDetails, now: Instant) -> EventWrite {
        self.clean(now);
        let allowed = self.may_write(now);
        let entries = self
            .entries
            .entry((news.uid.clone(), news.reason))
            .or_default();
        let index = position(entries, &news.note);
        let Some(entry) = index.and_then(|index| entries.get_mut(index)) else {
            if !allowed {
                return EventWrite::Drop;
            }
            self.allowance -= 1.0;
            entries.push(BookEntry {
                news: news.clone(),
                event: None,
                count: 1,
                written: 1,
                written_at: now,
                last: now,
            });
            return EventWrite::Create;
        };
        entry.count = entry.count.saturating_add(1);
        entry.last = now;
        let due =
            entry.count >= entry.written.saturating_mul(2) || now - entry.written_at >= COUNT_AGAIN;
        match &entry.event {
            Some(event) if due && allowed => {
                (entry.written, entry.written_at) = (entry.count, now);
                self.allowance -= 1.0;
                EventWrite::Count {
                    event: event.clone(),
                    count: entry.count,
                }
            }
            _ => EventWrite::Nothing,
        }
    }

    /// Records the name of the Event after a successful [`EventWrite::Create`].
    pub fn created(&mut self, news: &EventDetails, event: String) {
        let entries = self.entries.get_mut(&(news.uid.clone(), news.reason));
        let entry = entries.and_then(|entries| {
            entries
                .iter_mut()
                .find(|entry| entry.news.note == news.note)
        });
        if let Some(entry) = entry {
            entry.event = Some(event);
        }
    }

    /// An Event with an unwritten count, and the write of the count. Without `all`, the last write must be a minute old, and
    /// the limit must allow a write.
    pub fn unwritten(&mut self, now: Instant, all: bool) -> Option<(EventDetails, EventWrite)> {
        if !all && !self.may_write(now) {
            return None;
        }
        let mut entries = self.entries.values_mut().flatten();
        let entry = entries.find(|entry| {
            entry.is_unwritten() && (all || now.duration_since(entry.written_at) >= COUNT_AGAIN)
        })?;
        let event = entry.event.clone()?;
        (entry.written, entry.written_at) = (entry.count, now);
        self.allowance -= 1.0;
        Some((
            entry.news.clone(),
            EventWrite::Count {
                event,
                count: entry.count,
            },
        ))
    }

    /// The time at which an unwritten count is due without further news.
    pub fn next_count(&self) -> Option<Instant> {
        let unwritten = self
            .entries
            .values()
            .flatten()
            .filter(|entry| entry.is_unwritten());
        unwritten.map(|entry| entry.written_at + COUNT_AGAIN).min()
    }

    /// Forgets the Event on which `news` counts, so that the next occurrence creates a new one. The
    /// pod's other Events with the same reason stay: a pod has an Event for each container.
    pub fn forget(&mut self, news: &EventDetails) {
        let key = (news.uid.clone(), news.reason);
        let Some(entries) = self.entries.get_mut(&key) else {
            return;
        };
        if let Some(index) = position(entries, &news.note) {
            entries.remove(index);
        }
        if entries.is_empty() {
            self.entries.remove(&key);
        }
    }

    /// Raises the allowance by the elapsed time, and returns whether a write is allowed.
    fn may_write(&mut self, now: Instant) -> bool {
        if let Some(before) = self.counted_at.replace(now) {
            let earned = (now - before).as_secs_f64() / 60.0 * self.per_minute;
            self.allowance = (self.allowance + earned).min(self.per_minute);
        }
        self.allowance >= 1.0
    }

    /// Removes Events whose last occurrence is older than the window.
    fn clean(&mut self, now: Instant) {
        let window = self.window;
        self.entries.retain(|_, entries| {
            entries.retain(|entry| now - entry.last < window);
            !entries.is_empty()
        });
        if self.entries.len() > LONGEST_BOOK {
            self.entries.clear();
        }
    }
}

// === impl BookEntry ===

impl BookEntry {
    /// Whether the API's count is lower than the number of occurrences.
    fn is_unwritten(&self) -> bool {
        self.event.is_some() && self.count > self.written
    }
}

/// The index of the Event on which a note counts: the one with the same note, or the last one at
/// the limit of Events.
fn position(entries: &[BookEntry], note: &str) -> Option<usize> {
    let same = entries.iter().position(|entry| entry.news.note == note);
    same.or_else(|| (entries.len() >= NOTES_PER_REASON).then(|| entries.len() - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn news(pod: &str, note: &str) -> EventDetails {
        EventDetails {
            namespace: "a".to_owned(),
            pod: pod.to_owned(),
            uid: format!("u-{pod}"),
            warning: false,
            action: "Pin",
            reason: "Pinned",
            note: note.to_owned(),
        }
    }

    #[test]
    fn repetitions_are_counted_with_few_writes() {
        let (mut book, now) = (Book::new(Duration::from_secs(600), 100), Instant::now());
        let pinned = news("p", "CPUs 2-3");
        assert_eq!(book.note(&pinned, now), EventWrite::Create);
        assert_eq!(
            book.note(&pinned, now),
            EventWrite::Nothing,
            "the Event's name is not known yet"
        );
        book.created(&pinned, "e".to_owned());
        let counts: Vec<u32> = (0..1000)
            .filter_map(|_| match book.note(&pinned, now) {
                EventWrite::Count { count, .. } => Some(count),
                _ => None,
            })
            .collect();
        assert_eq!(counts, [3, 6, 12, 24, 48, 96, 192, 384, 768]);
        // A repetition after more than a minute is written at once.
        let later = now + Duration::from_secs(61);
        assert_eq!(
            book.note(&pinned, later),
            EventWrite::Count {
                event: "e".to_owned(),
                count: 1003
            }
        );
        // A repetition after the window creates a new Event.
        assert_eq!(
            book.note(&pinned, later + Duration::from_secs(600)),
            EventWrite::Create
        );
    }

    #[test]
    fn further_notes_of_a_reason_count_on_the_last_event() {
        let (mut book, now) = (Book::new(Duration::from_secs(600), 100), Instant::now());
        for number in 0..NOTES_PER_REASON {
            let pinned = news("p", &number.to_string());
            assert_eq!(book.note(&pinned, now), EventWrite::Create);
            book.created(&pinned, format!("e{number}"));
        }
        assert_eq!(
            book.note(&news("p", "more"), now),
            EventWrite::Count {
                event: "e3".to_owned(),
                count: 2
            }
        );
        assert_eq!(
            book.note(&news("q", "0"), now),
            EventWrite::Create,
            "the limit is per pod"
        );
    }

    #[test]
    fn writes_stay_within_the_limit_per_minute() {
        let (mut book, now) = (Book::new(Duration::from_secs(600), 10), Instant::now());
        let created = |book: &mut Book, from: u32, at: Instant| {
            (from..from + 100)
                .filter(|n| book.note(&news(&n.to_string(), "x"), at) == EventWrite::Create)
                .count()
        };
        assert_eq!(created(&mut book, 0, now), 10);
        assert_eq!(created(&mut book, 100, now + Duration::from_secs(30)), 5);
        assert_eq!(created(&mut book, 200, now + Duration::from_secs(3600)), 10);
    }

    #[test]
    fn a_forgotten_event_is_created_again() {
        let (mut book, now) = (Book::new(Duration::from_secs(600), 10), Instant::now());
        let pinned = news("p", "x");
        assert_eq!(book.note(&pinned, now), EventWrite::Create);
        book.forget(&pinned);
        assert_eq!(book.note(&pinned, now), EventWrite::Create);
    }

    #[test]
    fn the_other_events_of_a_pod_and_reason_stay_after_a_forgotten_event() {
        let (mut book, now) = (Book::new(Duration::from_secs(600), 100), Instant::now());
        for number in 0..NOTES_PER_REASON {
            let pinned = news("p", &number.to_string());
            assert_eq!(book.note(&pinned, now), EventWrite::Create);
            book.created(&pinned, format!("e{number}"));
        }
        let counted = |event: &str| EventWrite::Count {
            event: event.to_owned(),
            count: 2,
        };
        book.forget(&news("p", "1"));
        assert_eq!(book.note(&news("p", "0"), now), counted("e0"));
        assert_eq!(book.note(&news("p", "1"), now), EventWrite::Create);
        book.created(&news("p", "1"), "new".to_owned());
        // A further note counts on the last Event, so a failed count forgets the last Event only.
        assert_eq!(book.note(&news("p", "more"), now), counted("new"));
        book.forget(&news("p", "more"));
        assert_eq!(book.note(&news("p", "2"), now), counted("e2"));
        assert_eq!(book.note(&news("p", "1"), now), EventWrite::Create);
    }
}
