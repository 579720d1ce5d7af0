//! [`ReviewCache`]: the answers about callers, with bounds on their number, their age, and the rate of new reviews.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use tokio::time::Instant;

/// The most entries. A cluster has few scrapers, and an agent has two protected paths.
const MAX_ENTRIES: usize = 64;

/// How long an allowed caller needs no new review. A revoked token works for this time.
const ALLOWED_FOR: Duration = Duration::from_secs(120);

/// How long a refused caller gets no new review.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// How long a caller stays allowed after the last answer if the API server fails.
const KEPT_FOR: Duration = Duration::from_secs(900);

/// How long an allowed caller gets no new review after a failed review.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// The most reviews of unknown callers in each [`WINDOW`]. The bound protects the API server. A
/// caller is unknown unless the cache has an answer of the last [`KEPT_FOR`] that allowed it.
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
    /// The API server was not asked, because too many unknown callers wait or came in the last minute.
    TooManyTokens,
}

/// A caller's token and path, as the cache's key. It has only the token's SHA-256 digest, so the
/// cache holds no token.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct CallerKey {
    token_digest: [u8; SHA256_OUTPUT_LEN],
    path: &'static str,
}

/// Whether the cache has the answer for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CacheAnswer {
    /// The cache has the answer.
    Known(Review),
    /// The API server must be asked about a caller whom the last answer allowed.
    AskAgain,
    /// The API server must be asked about an unknown caller.
    AskFirst,
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
    entries: HashMap<CallerKey, CacheEntry>,
    /// The start of the current window, and the number of unknown callers reviewed since.
    window: Option<(Instant, u32)>,
}

/// The output has no digests, because a digest of a short token reveals the token.
impl fmt::Debug for ReviewCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReviewCache")
            .field("entries", &self.entries.len())
            .finish_non_exhaustive()
    }
}

// === impl CallerKey ===

impl CallerKey {
    pub(super) fn new(token: &str, path: &'static str) -> Self {
        let mut token_digest = [0; SHA256_OUTPUT_LEN];
        token_digest.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
        Self { token_digest, path }
    }
}

// === impl ReviewCache ===

impl ReviewCache {
    /// Finds the answer about a caller, or decides whether the API server is asked. Nothing is counted.
    pub(super) fn find(&self, caller: &CallerKey, now: Instant) -> CacheAnswer {
        if let Some(review) = self.fresh(caller, now) {
            CacheAnswer::Known(review)
        } else if self.was_allowed(caller, now) {
            CacheAnswer::AskAgain
        } else if self.current_window(now).1 >= MAX_UNKNOWN {
            CacheAnswer::Known(Review::TooManyTokens)
        } else {
            CacheAnswer::AskFirst
        }
    }

    /// Decides like [`ReviewCache::find`], and counts the review of an unknown caller.
    pub(super) fn admit(&mut self, caller: &CallerKey, now: Instant) -> CacheAnswer {
        let answer = self.find(caller, now);
        if answer == CacheAnswer::AskFirst {
            let (start, count) = self.current_window(now);
            self.window = Some((start, count + 1));
        }
        answer
    }

    /// Stores the API server's answer.
    pub(super) fn insert(&mut self, caller: CallerKey, review: Review, now: Instant) {
        if !self.entries.contains_key(&caller) {
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
        self.entries.insert(caller, entry);
    }

    /// Keeps an allowed caller after a failed review. Returns false if the caller was not allowed, or if the last answer is
    /// too old.
    pub(super) fn extend(&mut self, caller: &CallerKey, now: Instant) -> bool {
        let kept = self.was_allowed(caller, now);
        if let Some(entry) = self.entries.get_mut(caller).filter(|_| kept) {
            entry.due = (now + RETRY_AFTER).min(entry.answered + KEPT_FOR);
        }
        kept
    }

    /// Removes the answer about a caller, whose next review then counts as that of an unknown
    /// caller.
    pub(super) fn remove(&mut self, caller: &CallerKey) {
        self.entries.remove(caller);
    }

    /// The answer that needs no new review, if any.
    fn fresh(&self, caller: &CallerKey, now: Instant) -> Option<Review> {
        let entry = self.entries.get(caller)?;
        (now < entry.due).then_some(entry.review)
    }

    /// Whether the last answer allowed the caller, and is recent enough for [`ReviewCache::extend`].
    fn was_allowed(&self, caller: &CallerKey, now: Instant) -> bool {
        self.entries.get(caller).is_some_and(|entry| {
            entry.review == Review::Allowed && now.duration_since(entry.answered) < KEPT_FOR
        })
    }

    /// The start of the window at a time, and the number of unknown callers reviewed since.
    fn current_window(&self, now: Instant) -> (Instant, u32) {
        self.window
            .filter(|(start, _)| now.duration_since(*start) < WINDOW)
            .unwrap_or((now, 0))
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
            .map(|(caller, _)| *caller);
        if let Some(caller) = oldest {
            self.entries.remove(&caller);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/metrics";

    fn caller(token: &str) -> CallerKey {
        CallerKey::new(token, PATH)
    }

    #[test]
    fn answers_stay_for_a_bounded_time() {
        let (mut cache, start) = (ReviewCache::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        let (a, b) = (caller("a"), caller("b"));
        assert_eq!(cache.admit(&a, start), CacheAnswer::AskFirst);
        cache.insert(a, Review::Allowed, start);
        cache.insert(b, Review::Denied, start);
        assert_eq!(cache.fresh(&a, after(119)), Some(Review::Allowed));
        assert_eq!(cache.fresh(&a, after(120)), None);
        assert_eq!(cache.find(&a, after(120)), CacheAnswer::AskAgain);
        assert_eq!(cache.fresh(&b, after(59)), Some(Review::Denied));
        assert_eq!(cache.fresh(&b, after(60)), None);
        // An answer holds for one path and one token.
        assert_eq!(cache.fresh(&CallerKey::new("a", "/status"), start), None);
        assert_eq!(cache.fresh(&caller("c"), start), None);
    }

    /// The expected digest is the SHA-256 example of the letters `abc` in FIPS 180.
    #[test]
    fn the_key_has_a_digest_and_no_token() {
        let digest = caller("abc").token_digest;
        assert_eq!(digest[..4], [0xba, 0x78, 0x16, 0xbf]);
        assert_eq!(digest[28..], [0xf2, 0x00, 0x15, 0xad]);
        let mut cache = ReviewCache::default();
        cache.insert(caller("abc"), Review::Allowed, Instant::now());
        assert_eq!(format!("{cache:?}"), "ReviewCache { entries: 1, .. }");
    }

    #[test]
    fn an_allowed_caller_survives_a_failing_server_for_fifteen_minutes() {
        let (mut cache, start) = (ReviewCache::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        let (a, b) = (caller("a"), caller("b"));
        cache.insert(a, Review::Allowed, start);
        cache.insert(b, Review::Denied, start);
        assert!(cache.extend(&a, after(120)));
        assert_eq!(cache.fresh(&a, after(149)), Some(Review::Allowed));
        assert_eq!(cache.fresh(&a, after(150)), None);
        // The last extension ends with the fifteen minutes.
        assert!(cache.extend(&a, after(890)));
        assert_eq!(cache.fresh(&a, after(899)), Some(Review::Allowed));
        assert_eq!(cache.find(&a, after(900)), CacheAnswer::AskFirst);
        assert!(!cache.extend(&a, after(900)));
        assert!(!cache.extend(&b, start));
        assert!(!cache.extend(&caller("c"), start));
    }

    #[test]
    fn unknown_tokens_neither_grow_the_cache_nor_displace_a_scraper() {
        let (mut cache, start) = (ReviewCache::default(), Instant::now());
        let scraper = caller("scraper");
        cache.insert(scraper, Review::Allowed, start);
        for number in 0..10 * MAX_ENTRIES {
            let at = start + Duration::from_millis(number as u64);
            cache.insert(caller(&number.to_string()), Review::UnknownToken, at);
            assert!(cache.entries.len() <= MAX_ENTRIES);
        }
        assert_eq!(
            cache.fresh(&scraper, start + Duration::from_secs(1)),
            Some(Review::Allowed)
        );
    }

    #[test]
    fn unknown_tokens_are_reviewed_at_a_bounded_rate() {
        let (mut cache, start) = (ReviewCache::default(), Instant::now());
        let late = start + Duration::from_secs(130);
        let (scraper, next) = (caller("scraper"), caller("next"));
        cache.insert(scraper, Review::Allowed, start);
        for number in 0..MAX_UNKNOWN {
            let answer = cache.admit(&caller(&number.to_string()), late);
            assert_eq!(answer, CacheAnswer::AskFirst);
        }
        let refused = CacheAnswer::Known(Review::TooManyTokens);
        assert_eq!(cache.admit(&next, late), refused);
        // A caller with an earlier success is not limited.
        assert_eq!(cache.admit(&scraper, late), CacheAnswer::AskAgain);
        assert_eq!(cache.admit(&next, late + WINDOW), CacheAnswer::AskFirst);
    }
}
