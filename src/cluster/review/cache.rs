//! [`ReviewCache`]: the answers about callers, with bounds on their number, their age, and the rate of new reviews.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

/// The most entries. A cluster has few scrapers, and an agent has two protected paths. The keys take at most 512 KiB.
const MAX_ENTRIES: usize = 64;

/// How long an allowed caller needs no new review. A revoked token works for this time.
const ALLOWED_FOR: Duration = Duration::from_secs(120);

/// How long a refused caller gets no new review.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// How long a caller stays allowed after the last answer if the API server fails.
const KEPT_FOR: Duration = Duration::from_secs(900);

/// How long an allowed caller gets no new review after a failed review.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// The most reviews of unknown callers in each [`WINDOW`]. The bound protects the API server. An unknown caller was not
/// allowed in the last [`KEPT_FOR`].
const MAX_UNKNOWN: u32 = 30;

/// The time in which [`MAX_UNKNOWN`] reviews are possible.
const WINDOW: Duration = Duration::from_secs(60);

/// The answer about a caller and a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Review {
    /// The caller may read the path.
    Allowed,
    /// The caller is known, and may not read the path.
    Denied,
    /// The token is not valid in this cluster.
    UnknownToken,
    /// The API server was not asked, because too many unknown callers came in the last minute.
    TooManyTokens,
}

/// Whether the cache has the answer for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CacheAnswer {
    /// The cache has the answer.
    Known(Review),
    /// The API server must be asked.
    Ask,
}

#[derive(Debug, Clone, Copy)]
struct CacheEntry {
    review: Review,
    /// The time of the API server's answer.
    answered: Instant,
    /// The time from which the cache no longer gives this answer without a new review.
    due: Instant,
}

/// The answers by token and path.
#[derive(Default)]
pub(super) struct ReviewCache {
    entries: HashMap<(String, &'static str), CacheEntry>,
    /// The start of the current window, and the number of unknown callers reviewed in the window.
    window: Option<(Instant, u32)>,
}

/// The output has no tokens.
impl fmt::Debug for ReviewCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReviewCache")
            .field("entries", &self.entries.len())
            .finish_non_exhaustive()
    }
}

// === impl ReviewCache ===

impl ReviewCache {
    /// The answer that needs no new review, if any.
    pub(super) fn fresh(&self, token: &str, path: &'static str, now: Instant) -> Option<Review> {
        let entry = self.entries.get(&(token.to_owned(), path))?;
        (now < entry.due).then_some(entry.review)
    }

    /// Decides whether the API server is asked about a caller, and counts the review of an unknown caller.
    pub(super) fn admit(&mut self, token: &str, path: &'static str, now: Instant) -> CacheAnswer {
        if let Some(review) = self.fresh(token, path, now) {
            return CacheAnswer::Known(review);
        }
        if self.was_allowed(token, path, now) {
            return CacheAnswer::Ask;
        }
        let (start, count) = self
            .window
            .filter(|(start, _)| now.duration_since(*start) < WINDOW)
            .unwrap_or((now, 0));
        if count >= MAX_UNKNOWN {
            return CacheAnswer::Known(Review::TooManyTokens);
        }
        self.window = Some((start, count + 1));
        CacheAnswer::Ask
    }

    /// Stores the API server's answer.
    pub(super) fn insert(&mut self, token: &str, path: &'static str, review: Review, now: Instant) {
        let key = (token.to_owned(), path);
        if !self.entries.contains_key(&key) {
            self.make_room(now);
        }
        let lifetime = match review {
            Review::Allowed => ALLOWED_FOR,
            Review::Denied | Review::UnknownToken | Review::TooManyTokens => REFUSED_FOR,
        };
        let entry = CacheEntry {
            review,
            answered: now,
            due: now + lifetime,
        };
        self.entries.insert(key, entry);
    }

    /// Keeps an allowed caller after a failed review. Returns false if the caller was not allowed, or if the last answer is
    /// too old.
    pub(super) fn extend(&mut self, token: &str, path: &'static str, now: Instant) -> bool {
        let kept = self.was_allowed(token, path, now);
        if let Some(entry) = self
            .entries
            .get_mut(&(token.to_owned(), path))
            .filter(|_| kept)
        {
            entry.due = now + RETRY_AFTER;
        }
        kept
    }

    /// Whether the last answer allowed the caller, and is recent enough for [`ReviewCache::extend`].
    fn was_allowed(&self, token: &str, path: &'static str, now: Instant) -> bool {
        let entry = self.entries.get(&(token.to_owned(), path));
        entry.is_some_and(|entry| {
            entry.review == Review::Allowed && now.duration_since(entry.answered) < KEPT_FOR
        })
    }

    /// Makes room for an entry: removes expired entries, and then the oldest entry of a full cache. Refused callers go first,
    /// so that unknown tokens never displace a scraper.
    fn make_room(&mut self, now: Instant) {
        self.entries.retain(|_, entry| match entry.review {
            Review::Allowed => now.duration_since(entry.answered) < KEPT_FOR,
            Review::Denied | Review::UnknownToken | Review::TooManyTokens => now < entry.due,
        });
        if self.entries.len() < MAX_ENTRIES {
            return;
        }
        let oldest = self
            .entries
            .iter()
            .min_by_key(|(_, entry)| (entry.review == Review::Allowed, entry.answered))
            .map(|(key, _)| key.clone());
        if let Some(key) = oldest {
            self.entries.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/metrics";

    #[test]
    fn answers_stay_for_a_bounded_time() {
        let (mut cache, start) = (ReviewCache::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(cache.admit("a", PATH, start), CacheAnswer::Ask);
        cache.insert("a", PATH, Review::Allowed, start);
        cache.insert("b", PATH, Review::Denied, start);
        assert_eq!(cache.fresh("a", PATH, after(119)), Some(Review::Allowed));
        assert_eq!(cache.fresh("a", PATH, after(120)), None);
        assert_eq!(cache.fresh("b", PATH, after(59)), Some(Review::Denied));
        assert_eq!(cache.fresh("b", PATH, after(60)), None);
        // An answer holds for one path and one token.
        assert_eq!(cache.fresh("a", "/status", start), None);
        assert_eq!(cache.fresh("c", PATH, start), None);
    }

    #[test]
    fn an_allowed_caller_survives_a_failing_server_for_fifteen_minutes() {
        let (mut cache, start) = (ReviewCache::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        cache.insert("a", PATH, Review::Allowed, start);
        cache.insert("b", PATH, Review::Denied, start);
        assert!(cache.extend("a", PATH, after(120)));
        assert_eq!(cache.fresh("a", PATH, after(149)), Some(Review::Allowed));
        assert_eq!(cache.fresh("a", PATH, after(150)), None);
        assert!(cache.extend("a", PATH, after(899)));
        assert!(!cache.extend("a", PATH, after(930)));
        assert!(!cache.extend("b", PATH, start));
        assert!(!cache.extend("c", PATH, start));
    }

    #[test]
    fn unknown_tokens_neither_grow_the_cache_nor_displace_a_scraper() {
        let (mut cache, start) = (ReviewCache::default(), Instant::now());
        cache.insert("scraper", PATH, Review::Allowed, start);
        for number in 0..10 * MAX_ENTRIES {
            let at = start + Duration::from_millis(number as u64);
            cache.insert(&number.to_string(), PATH, Review::UnknownToken, at);
            assert!(cache.entries.len() <= MAX_ENTRIES);
        }
        assert_eq!(
            cache.fresh("scraper", PATH, start + Duration::from_secs(1)),
            Some(Review::Allowed)
        );
    }

    #[test]
    fn unknown_tokens_are_reviewed_at_a_bounded_rate() {
        let (mut cache, start) = (ReviewCache::default(), Instant::now());
        let late = start + Duration::from_secs(130);
        cache.insert("scraper", PATH, Review::Allowed, start);
        for number in 0..MAX_UNKNOWN {
            assert_eq!(
                cache.admit(&number.to_string(), PATH, late),
                CacheAnswer::Ask
            );
        }
        let refused = CacheAnswer::Known(Review::TooManyTokens);
        assert_eq!(cache.admit("next", PATH, late), refused);
        // A caller with an earlier success is not limited.
        assert_eq!(cache.admit("scraper", PATH, late), CacheAnswer::Ask);
        let next_window = late + WINDOW;
        assert_eq!(cache.admit("next", PATH, next_window), CacheAnswer::Ask);
    }
}
