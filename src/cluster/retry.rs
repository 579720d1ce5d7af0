//! [`retry`]: one request, repeated while its failure is retryable.

use std::time::Duration;

use super::{Backoff, Failure, Jitter};

/// How often and when a request is repeated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Retry {
    /// The shortest and the longest wait.
    pub(super) backoff: (Duration, Duration),
    /// The number of repetitions after the first try.
    pub(super) retries: u32,
}

/// Sends a request until success, a failure that is not retryable, or the end of the retries. `before_retry` runs after each
/// wait.
///
/// `Retry-After` sets the shortest wait: see [`Backoff::wait`].
pub(super) async fn retry<T, F: Future<Output = Result<T, Failure>>>(
    policy: Retry,
    mut request: impl FnMut() -> F,
    before_retry: impl Fn(),
) -> Result<T, Failure> {
    let mut backoff = Backoff::new(policy.backoff.0, policy.backoff.1);
    let mut jitter = Jitter::default();
    let mut left = policy.retries;
    loop {
        match request().await {
            Err(failure) if failure.is_retryable() && left > 0 => {
                left -= 1;
                let wait = backoff.wait(jitter.roll(), failure.retry_after());
                tokio::time::sleep(wait).await;
                before_retry();
            }
            answer => return answer,
        }
    }
}
