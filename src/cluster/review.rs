//! [`Reviewer`]: asks the API server for the user of a caller's token, and whether the user may read a path of the agent.
//!
//! A TokenReview finds the user of a bearer token. A SubjectAccessReview then says whether the user may `get` the path as a
//! non-resource URL. A caller sends its token to every agent, in clear text. With audiences of the agents' own, such a token
//! is worthless elsewhere: the API server refuses it. Without audiences the token must have one of the API server, and whoever
//! reads it can do whatever its user can.
//!
//! The answers stay in a bounded cache with digests of the tokens. No log line, error or debug output has a token.

mod cache;
mod log_limit;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::core::params::PostParams;
use kube::core::request;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::{Api, Call, Failure};
pub use cache::Review;
use cache::{CacheAnswer, CallerKey, ReviewCache};
use log_limit::LogLimit;

const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// How long the API server may take for each of the two reviews. The scraper waits for both answers.
const DEADLINE: Duration = Duration::from_secs(3);

/// The longest token, in bytes. Tokens of service accounts and of identity providers stay below the limit.
const LONGEST_TOKEN: usize = 8 << 10;

/// The most unknown callers that are reviewed at the same time. The same bound applies to allowed callers, separately.
const AT_ONCE: usize = 4;

/// How long a caller waits for the end of other callers' reviews.
const LONGEST_WAIT: Duration = Duration::from_secs(3);

/// The text that replaces a token in an error.
const HIDDEN: &str = "[token]";

/// Reviews callers by their tokens. Clones share the cache and the limits.
#[derive(Debug, Clone)]
pub struct Reviewer {
    api: Api,
    /// The audiences of which a token must have one. Empty for the API server's own.
    audiences: Arc<[String]>,
    cache: Arc<Mutex<ReviewCache>>,
    /// Permits for reviews of unknown callers.
    unknown_permits: Arc<Semaphore>,
    /// Permits for reviews of callers whom the last answer allowed. Unknown callers never delay these reviews.
    allowed_permits: Arc<Semaphore>,
    logs: Arc<ReviewLogs>,
}

/// The limits of the reviewer's log lines, so that a flood of requests writes no flood of lines.
#[derive(Debug, Default)]
struct ReviewLogs {
    too_many: LogLimit,
    kept: LogLimit,
    failed: LogLimit,
}

// === impl Reviewer ===

impl Reviewer {
    /// Creates a reviewer with an empty cache. A token must have one of `audiences`, or one of the API server if there are none.
    /// No request is sent.
    pub fn new(api: &Api, audiences: &[String]) -> Self {
        Self {
            api: api.with_deadline(DEADLINE),
            audiences: audiences.into(),
            cache: Arc::default(),
            unknown_permits: Arc::new(Semaphore::new(AT_ONCE)),
            allowed_permits: Arc::new(Semaphore::new(AT_ONCE)),
            logs: Arc::default(),
        }
    }

    /// Reviews whether the token's user may read the path.
    ///
    /// If the API server fails, a caller stays allowed until 15 minutes after the last answer that
    /// allowed it. A server that refuses the agent's own request, for example with 403, has not
    /// failed.
    ///
    /// # Errors
    /// Any [`Failure`] of the API server.
    pub async fn review(&self, token: &str, path: &'static str) -> Result<Review, Failure> {
        if token.is_empty() || token.len() > LONGEST_TOKEN {
            return Ok(Review::UnknownToken);
        }
        let answer = self.find_or_ask(token, path).await;
        match &answer {
            Ok(Review::TooManyTokens) if self.logs.too_many.admits(Instant::now()) => {
                tracing::warn!(
                    "too many unknown tokens came for {path}: the agent reviews no further unknown token for up to a \
                     minute; find the sender, or restrict the port with a NetworkPolicy"
                );
            }
            Err(failure) if self.logs.failed.admits(Instant::now()) => {
                tracing::warn!("can't review a caller of {path}: {failure}");
            }
            _ => {}
        }
        answer
    }

    /// The answer of the cache, or else of the API server.
    async fn find_or_ask(&self, token: &str, path: &'static str) -> Result<Review, Failure> {
        let caller = CallerKey::new(token, path);
        let found = self.cache().find(&caller, Instant::now());
        let permits = match found {
            CacheAnswer::Known(review) => return Ok(review),
            CacheAnswer::AskAgain => &self.allowed_permits,
            CacheAnswer::AskFirst => &self.unknown_permits,
        };
        // The semaphores are never closed.
        let Ok(_permit) = tokio::time::timeout(LONGEST_WAIT, permits.acquire()).await else {
            return if found == CacheAnswer::AskAgain {
                self.keep(&caller, Failure::Timeout(LONGEST_WAIT))
            } else {
                Ok(Review::TooManyTokens)
            };
        };
        // A review of the same token may have ended during the wait.
        let admitted = self.cache().admit(&caller, Instant::now());
        if let CacheAnswer::Known(review) = admitted {
            return Ok(review);
        }
        match self.ask(token, path).await {
            Ok(review) => {
                self.cache().insert(caller, review, Instant::now());
                Ok(review)
            }
            Err(failure) => self.keep(&caller, without_token(failure, token)),
        }
    }

    /// Keeps an allowed caller for a while if the API server failed. If the server refused the agent's request, the caller
    /// counts as unknown from now on.
    ///
    /// # Errors
    /// The failure, if the caller was not allowed or the server refused the agent's request.
    fn keep(&self, caller: &CallerKey, failure: Failure) -> Result<Review, Failure> {
        let now = Instant::now();
        if !failure.is_retryable() {
            self.cache().remove(caller);
            return Err(failure);
        }
        if !self.cache().extend(caller, now) {
            return Err(failure);
        }
        if self.logs.kept.admits(now) {
            tracing::warn!("allowed callers stay allowed without a new review: {failure}");
        }
        Ok(Review::Allowed)
    }

    /// Reviews a token without the cache.
    async fn ask(&self, token: &str, path: &str) -> Result<Review, Failure> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.to_owned(),
                audiences: (!self.audiences.is_empty()).then(|| self.audiences.to_vec()),
            },
            ..TokenReview::default()
        };
        let review: TokenReview = self
            .create(Call::ReviewToken, TOKEN_REVIEWS, &review)
            .await?;
        let status = review.status.unwrap_or_default();
        let is_valid = status.authenticated == Some(true)
            && self.is_for_agents(status.audiences.as_deref().unwrap_or_default());
        let Some(user) = status.user.filter(|_| is_valid) else {
            return Ok(Review::UnknownToken);
        };
        let review = access_review(user, path);
        let review: SubjectAccessReview = self
            .create(Call::ReviewAccess, ACCESS_REVIEWS, &review)
            .await?;
        let allowed = review.status.is_some_and(|status| status.allowed);
        Ok(if allowed {
            Review::Allowed
        } else {
            Review::Denied
        })
    }

    /// Whether a token with these audiences, according to the answer, is meant for agents. A server whose authenticator does not
    /// know audiences ignores those of the request, and answers without any.
    fn is_for_agents(&self, of_token: &[String]) -> bool {
        self.audiences.is_empty()
            || of_token
                .iter()
                .any(|audience| self.audiences.contains(audience))
    }

    /// Creates a review. The API server does not store it, and answers with the result.
    async fn create<T: DeserializeOwned>(
        &self,
        call: Call,
        path: &str,
        review: &impl Serialize,
    ) -> Result<T, Failure> {
        let body = serde_json::to_vec(review).map_err(|error| self.api.unbuilt(error))?;
        let request = request::Request::new(path)
            .create(&PostParams::default(), body)
            .map_err(|error| self.api.unbuilt(error))?;
        self.api.ask(call, request).await
    }

    fn cache(&self) -> MutexGuard<'_, ReviewCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The SubjectAccessReview of a user who reads a path.
fn access_review(user: UserInfo, path: &str) -> SubjectAccessReview {
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            extra: user.extra,
            groups: user.groups,
            non_resource_attributes: Some(NonResourceAttributes {
                path: Some(path.to_owned()),
                verb: Some("get".to_owned()),
            }),
            uid: user.uid,
            user: user.username,
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}

/// Removes the token from a failure, because a proxy or an admission webhook may repeat the request
/// in its answer.
fn without_token(failure: Failure, token: &str) -> Failure {
    let hide = |text: &str| text.replace(token, HIDDEN);
    match failure {
        Failure::Connection(text) => Failure::Connection(hide(&text)),
        Failure::InvalidResponse(text) => Failure::InvalidResponse(hide(&text)),
        Failure::InvalidRequest(text) => Failure::InvalidRequest(hide(&text)),
        Failure::Refused {
            mut status,
            retry_after,
        } => {
            status.message = hide(&status.message);
            status.reason = hide(&status.reason);
            status.details = None;
            Failure::Refused {
                status,
                retry_after,
            }
        }
        Failure::Timeout(deadline) => Failure::Timeout(deadline),
    }
}
