//! [`Reviewer`]: asks the API server for the user of a caller's token, and whether the user may read a path of the agent.
//!
//! A TokenReview finds the user of a bearer token. A SubjectAccessReview then says whether the user may `get` the path as a
//! non-resource URL. The answers stay in a bounded cache. No log line and no debug output has a token.

mod cache;

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
use cache::{CacheAnswer, ReviewCache};

const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// How long the API server may take for each of the two reviews. The scraper waits for both answers.
const DEADLINE: Duration = Duration::from_secs(3);

/// The longest token, in bytes. Tokens of service accounts and of identity providers stay below the limit.
const LONGEST_TOKEN: usize = 8 << 10;

/// The most callers that are reviewed at the same time.
const AT_ONCE: usize = 4;

/// Reviews callers by their tokens. Clones share the cache.
#[derive(Debug, Clone)]
pub struct Reviewer {
    api: Api,
    cache: Arc<Mutex<ReviewCache>>,
    permits: Arc<Semaphore>,
}

// === impl Reviewer ===

impl Reviewer {
    /// Creates a reviewer with an empty cache. No request is sent.
    pub fn new(api: &Api) -> Self {
        Self {
            api: api.with_deadline(DEADLINE),
            cache: Arc::default(),
            permits: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Reviews whether the token's user may read the path.
    ///
    /// If the API server fails, a caller stays allowed until 15 minutes after the last answer that allowed the caller.
    ///
    /// # Errors
    /// Any [`Failure`] of the API server.
    pub async fn review(&self, token: &str, path: &'static str) -> Result<Review, Failure> {
        if token.is_empty() || token.len() > LONGEST_TOKEN {
            return Ok(Review::UnknownToken);
        }
        if let Some(review) = self.cache().fresh(token, path, Instant::now()) {
            return Ok(review);
        }
        // The semaphore is never closed.
        let _permit = self.permits.acquire().await;
        // A review of the same token may have ended during the wait.
        if let CacheAnswer::Known(review) = self.cache().admit(token, path, Instant::now()) {
            return Ok(review);
        }
        let answer = self.ask(token, path).await;
        let mut cache = self.cache();
        match answer {
            Ok(review) => {
                cache.insert(token, path, review, Instant::now());
                Ok(review)
            }
            Err(failure) if cache.extend(token, path, Instant::now()) => {
                tracing::warn!("a caller of {path} stays allowed without a new review: {failure}");
                Ok(Review::Allowed)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Reviews a token without the cache.
    async fn ask(&self, token: &str, path: &str) -> Result<Review, Failure> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.to_owned(),
                ..TokenReviewSpec::default()
            },
            ..TokenReview::default()
        };
        let review: TokenReview = self
            .create(Call::ReviewToken, TOKEN_REVIEWS, &review)
            .await?;
        let status = review.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true));
        let Some(user) = user else {
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

    /// Creates a review. The API server stores no review, and answers with the result.
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
