//! [`Book`]: which news become a new Event, a count, or nothing.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::News;

/// So many different sentences of one reason on one pod get Events of their own; more count on the last of them.
const SENTENCES: usize = 4;

/// A count is written again at the latest when this has passed.
const COUNT_AGAIN: Duration = Duration::from_secs(60);

/// The most things that are remembered.
const LONGEST_BOOK: usize = 4096;

/// What to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A new Event; [`Book::created`] is to be told its name.
    Create,
    /// It happened again: this count, on this Event.
    Count {
        /// The Event's name.
        event: String,
        /// How often it has happened in all.
        count: u32,
    },
    /// Nothing yet: it is counted, and the count is written later.
    Nothing,
    /// Nothing: the node has written too much this minute.
    Drop,
}

/// One Event that is there.
#[derive(Debug, Clone)]
struct Entry {
    news: News,
    event: Option<String>,
    count: u32,
    written: u32,
    written_at: Instant,
    last: Instant,
}

/// What has been told of late. Plain values; the time is given.
#[derive(Debug)]
pub struct Book {
    window: Duration,
    per_minute: f64,
    /// Writes that may be made now.
    allowance: f64,
    counted_at: Option<Instant>,
    /// By pod and reason.
    entries: HashMap<(String, &'static str), Vec<Entry>>,
}

// === impl Book ===

impl Book {
    /// What is repeated within `window` is the same Event; at most `per_minute` writes.
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

    /// Takes news; what to write.
    pub fn note(&mut self, news: &News, now: Instant) -> Step {
        self.clean(now);
        let allowed = self.may_write(now);
        let entries = self
            .entries
            .entry((news.uid.clone(), news.reason))
            .or_default();
        let same = entries
            .iter()
            .position(|entry| entry.news.note == news.note);
        let index = same.or_else(|| (entries.len() >= SENTENCES).then(|| entries.len() - 1));
        let Some(entry) = index.and_then(|index| entries.get_mut(index)) else {
            if !allowed {
                return Step::Drop;
            }
            self.allowance -= 1.0;
            entries.push(Entry {
                news: news.clone(),
                event: None,
                count: 1,
                written: 1,
                written_at: now,
                last: now,
            });
            return Step::Create;
        };
        entry.count = entry.count.saturating_add(1);
        entry.last = now;
        let due =
            entry.count >= entry.written.saturating_mul(2) || now - entry.written_at >= COUNT_AGAIN;
        match &entry.event {
            Some(event) if due && allowed => {
                (entry.written, entry.written_at) = (entry.count, now);
                self.allowance -= 1.0;
                Step::Count {
                    event: event.clone(),
                    count: entry.count,
                }
            }
            _ => Step::Nothing,
        }
    }

    /// The Event that [`Step::Create`] asked for is there.
    pub fn created(&mut self, news: &News, event: String) {
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

    /// A count that is higher than the written one, with the news that it belongs to. Without `all`, only a count that has waited
    /// for a minute, and only while a write is allowed.
    pub fn unwritten(&mut self, now: Instant, all: bool) -> Option<(News, Step)> {
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
            Step::Count {
                event,
                count: entry.count,
            },
        ))
    }

    /// When the next count is to be written although nothing happens.
    pub fn next_count(&self) -> Option<Instant> {
        let unwritten = self
            .entries
            .values()
            .flatten()
            .filter(|entry| entry.is_unwritten());
        unwritten.map(|entry| entry.written_at + COUNT_AGAIN).min()
    }

    /// The Event is not there: the next time makes a new one.
    pub fn forget(&mut self, news: &News) {
        self.entries.remove(&(news.uid.clone(), news.reason));
    }

    /// Fills the allowance up as time goes; whether a write is allowed.
    fn may_write(&mut self, now: Instant) -> bool {
        if let Some(before) = self.counted_at.replace(now) {
            let earned = (now - before).as_secs_f64() / 60.0 * self.per_minute;
            self.allowance = (self.allowance + earned).min(self.per_minute);
        }
        self.allowance >= 1.0
    }

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

// === impl Entry ===

impl Entry {
    /// Whether the Event shows fewer repetitions than there were.
    fn is_unwritten(&self) -> bool {
        self.event.is_some() && self.count > self.written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn news(pod: &str, note: &str) -> News {
        News {
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
    fn the_same_is_counted_with_few_writes() {
        let (mut book, now) = (Book::new(Duration::from_secs(600), 100), Instant::now());
        let one = news("p", "CPUs 2-3");
        assert_eq!(book.note(&one, now), Step::Create);
        assert_eq!(
            book.note(&one, now),
            Step::Nothing,
            "its name is not known yet"
        );
        book.created(&one, "e".to_owned());
        let counts: Vec<u32> = (0..1000)
            .filter_map(|_| match book.note(&one, now) {
                Step::Count { count, .. } => Some(count),
                _ => None,
            })
            .collect();
        assert_eq!(counts, [3, 6, 12, 24, 48, 96, 192, 384, 768]);
        // A slow repetition is written when it happens.
        let later = now + Duration::from_secs(61);
        assert_eq!(
            book.note(&one, later),
            Step::Count {
                event: "e".to_owned(),
                count: 1003
            }
        );
        // After the window it is news again.
        assert_eq!(
            book.note(&one, later + Duration::from_secs(600)),
            Step::Create
        );
    }

    #[test]
    fn many_sentences_of_a_reason_end_on_the_last_event() {
        let (mut book, now) = (Book::new(Duration::from_secs(600), 100), Instant::now());
        for number in 0..SENTENCES {
            let one = news("p", &number.to_string());
            assert_eq!(book.note(&one, now), Step::Create);
            book.created(&one, format!("e{number}"));
        }
        assert_eq!(
            book.note(&news("p", "more"), now),
            Step::Count {
                event: "e3".to_owned(),
                count: 2
            }
        );
        assert_eq!(
            book.note(&news("q", "0"), now),
            Step::Create,
            "another pod is another matter"
        );
    }

    #[test]
    fn a_node_writes_no_more_than_it_may() {
        let (mut book, now) = (Book::new(Duration::from_secs(600), 10), Instant::now());
        let created = |book: &mut Book, from: u32, at: Instant| {
            (from..from + 100)
                .filter(|n| book.note(&news(&n.to_string(), "x"), at) == Step::Create)
                .count()
        };
        assert_eq!(created(&mut book, 0, now), 10);
        assert_eq!(created(&mut book, 100, now + Duration::from_secs(30)), 5);
        assert_eq!(created(&mut book, 200, now + Duration::from_secs(3600)), 10);
    }

    #[test]
    fn what_is_lost_is_told_anew() {
        let (mut book, now) = (Book::new(Duration::from_secs(600), 10), Instant::now());
        let one = news("p", "x");
        assert_eq!(book.note(&one, now), Step::Create);
        book.forget(&one);
        assert_eq!(book.note(&one, now), Step::Create);
    }
}
