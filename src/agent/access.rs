//! [`AccessRules`]: which callers of the HTTP server may read names of pods and their CPUs.
//!
//! Callers on this host may read everything, and so may callers whom the API server authorizes. A
//! port-forward ends on the loopback address of the agent's pod, so its caller counts as one on
//! this host. A request that comes through a proxy counts as one from another host.

use std::net::IpAddr;

use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HeaderMap};

use super::config::{Metrics, MetricsAuth};
use crate::cluster::Api;
use crate::cluster::review::{Review, Reviewer};

/// Headers that a proxy adds. Even a proxy on this host may pass on requests from any other.
const PROXY_HEADERS: [&str; 3] = ["forwarded", "via", "x-real-ip"];

/// How further headers of proxies begin, for example `X-Forwarded-For` and `X-Forwarded-Proto`.
const PROXY_PREFIX: &str = "x-forwarded-";

/// A page with access rules. RBAC knows it by its path, as a non-resource URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProtectedPath {
    Metrics,
    Status,
}

#[derive(Debug)]
pub(super) struct AccessRules {
    /// `None` for an agent without the Kubernetes API.
    reviewer: Option<Reviewer>,
    metrics: MetricsAuth,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum AccessRefusal {
    #[error(
        "the agent uses no Kubernetes API and can't review callers: send the request from the agent's host, use a \
         port-forward (--cluster), or give the agent a kubeconfig (--kubeconfig)"
    )]
    NoApi,
    #[error(
        "the request has no bearer token: send a token that may get {} (--token-file), or use a port-forward (--cluster)",
        .0.path()
    )]
    NoToken(ProtectedPath),
    #[error(
        "the request has several headers Authorization, or a token with a space or a non-ASCII character: send a single \
         header `Authorization: Bearer TOKEN`"
    )]
    MalformedToken,
    #[error(
        "the bearer token is not valid in this cluster, or has a different audience: send a current token of a service \
         account or user, with an audience that the agents accept (metrics.audiences; without this key an audience of the \
         API server)"
    )]
    UnknownToken,
    #[error(
        "the token's user may not get {}: bind the user to a ClusterRole with the verb get on the nonResourceURL {}",
        .0.path(),
        .0.path()
    )]
    Denied(ProtectedPath),
    #[error(
        "the agent reviews no further unknown token now, because too many unknown tokens came: try again in a minute"
    )]
    TooManyTokens,
    #[error(
        "the API server did not review the caller: try again, and read the agent's log for the cause"
    )]
    NoReview,
}

// === impl ProtectedPath ===

impl ProtectedPath {
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Metrics => "/metrics",
            Self::Status => "/status",
        }
    }
}

// === impl AccessRefusal ===

impl AccessRefusal {
    pub(super) fn status(self) -> StatusCode {
        match self {
            Self::NoToken(_) | Self::MalformedToken | Self::UnknownToken => {
                StatusCode::UNAUTHORIZED
            }
            Self::NoApi | Self::Denied(_) => StatusCode::FORBIDDEN,
            Self::TooManyTokens => StatusCode::TOO_MANY_REQUESTS,
            Self::NoReview => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

// === impl AccessRules ===

impl AccessRules {
    /// Without `api`, only callers on this host may read `/status`.
    ///
    /// # Errors
    /// `/metrics` needs reviews, and the agent has no API.
    pub(super) fn new(metrics: &Metrics, api: Option<&Api>) -> anyhow::Result<Self> {
        anyhow::ensure!(
            metrics.auth == MetricsAuth::None || api.is_some(),
            "metrics.auth is kubernetes, but the agent uses no Kubernetes API: name a kubeconfig with --kubeconfig, or set \
             metrics.auth to none"
        );
        anyhow::ensure!(
            metrics.audiences.is_empty() || api.is_some(),
            "metrics.audiences is set, but the agent uses no Kubernetes API: name a kubeconfig with --kubeconfig, or remove \
             metrics.audiences"
        );
        Ok(Self {
            reviewer: api.map(|api| Reviewer::new(api, &metrics.audiences)),
            metrics: metrics.auth,
        })
    }

    /// Checks that a caller may read a page. `is_local`: the caller is on this host, as for [`is_on_this_host`].
    ///
    /// # Errors
    /// The reason why the caller may not read the page.
    pub(super) async fn check(
        &self,
        page: ProtectedPath,
        is_local: bool,
        headers: &HeaderMap,
    ) -> Result<(), AccessRefusal> {
        let is_open = page == ProtectedPath::Metrics && self.metrics == MetricsAuth::None;
        if is_open || is_local {
            return Ok(());
        }
        let reviewer = self.reviewer.as_ref().ok_or(AccessRefusal::NoApi)?;
        let token = bearer_token(page, headers)?;
        match reviewer.review(token, page.path()).await {
            Ok(Review::Allowed) => Ok(()),
            Ok(Review::Denied) => Err(AccessRefusal::Denied(page)),
            Ok(Review::UnknownToken) => Err(AccessRefusal::UnknownToken),
            Ok(Review::TooManyTokens) => Err(AccessRefusal::TooManyTokens),
            // The reviewer logs the failure.
            Err(_) => Err(AccessRefusal::NoReview),
        }
    }
}

/// Whether a request comes from this host, without a proxy in between. `is_local_connection` tells
/// whether the connection does.
pub(super) fn is_on_this_host(is_local_connection: bool, headers: &HeaderMap) -> bool {
    let is_of_proxy = |name: &str| PROXY_HEADERS.contains(&name) || name.starts_with(PROXY_PREFIX);
    is_local_connection && !headers.keys().any(|name| is_of_proxy(name.as_str()))
}

/// Whether a connection comes from this host: from a loopback address, or from the address to which the caller connects.
pub(super) fn is_local_connection(peer: IpAddr, own: IpAddr) -> bool {
    let (peer, own) = (peer.to_canonical(), own.to_canonical());
    peer.is_loopback() || peer == own
}

/// The bearer token of a request. The scheme may be written in upper or lower case.
///
/// # Errors
/// The request has no bearer token, several headers `Authorization`, or a token with other characters than visible ASCII.
fn bearer_token(page: ProtectedPath, headers: &HeaderMap) -> Result<&str, AccessRefusal> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().ok_or(AccessRefusal::NoToken(page))?;
    if values.next().is_some() {
        return Err(AccessRefusal::MalformedToken);
    }
    let text = value.to_str().map_err(|_| AccessRefusal::MalformedToken)?;
    let (scheme, token) = text.split_once(' ').ok_or(AccessRefusal::NoToken(page))?;
    let token = token.trim_matches(' ');
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
        return Err(AccessRefusal::NoToken(page));
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(AccessRefusal::MalformedToken);
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn a_caller_on_this_host_is_local() {
        let local = |peer: &str, own: &str| {
            is_local_connection(peer.parse().unwrap(), own.parse().unwrap())
        };
        assert!(local("127.0.0.1", "127.0.0.1"));
        assert!(local("127.8.9.1", "127.0.0.1"));
        assert!(local("::1", "::1"));
        assert!(local("::ffff:127.0.0.1", "::ffff:127.0.0.1"));
        assert!(local("10.0.0.7", "10.0.0.7"));
        assert!(local("::ffff:10.0.0.7", "10.0.0.7"));
        assert!(!local("10.0.0.8", "10.0.0.7"));
        assert!(!local("::ffff:10.0.0.8", "::ffff:10.0.0.7"));
        assert!(!local("fd00::2", "fd00::1"));
    }

    #[test]
    fn the_token_follows_the_scheme_bearer() {
        let page = ProtectedPath::Status;
        let (none, malformed) = (
            Err(AccessRefusal::NoToken(page)),
            Err(AccessRefusal::MalformedToken),
        );
        for (header, token) in [
            ("Bearer abc.def", Ok("abc.def")),
            ("bearer abc", Ok("abc")),
            ("BEARER  abc ", Ok("abc")),
            ("Bearer", none),
            ("Bearer ", none),
            ("Basic abc", none),
            ("abc", none),
            ("", none),
            ("Bearer abc def", malformed),
            ("Bearer abc, Bearer def", malformed),
            ("Bearer abc\tdef", malformed),
            ("Bearer äbc", malformed),
        ] {
            let value = HeaderValue::from_bytes(header.as_bytes()).unwrap();
            let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
            assert_eq!(bearer_token(page, &headers), token, "{header:?}");
        }
        assert_eq!(bearer_token(page, &HeaderMap::new()), none);
    }

    /// The agent and a proxy in front of it could choose different ones.
    #[test]
    fn a_request_with_two_tokens_is_refused() {
        let page = ProtectedPath::Metrics;
        let mut headers = HeaderMap::new();
        for token in ["Bearer abc", "Bearer abc"] {
            assert_ne!(
                bearer_token(page, &headers),
                Err(AccessRefusal::MalformedToken)
            );
            headers.append(AUTHORIZATION, HeaderValue::from_static(token));
        }
        let token = bearer_token(page, &headers);
        assert_eq!(token, Err(AccessRefusal::MalformedToken));
        assert_eq!(token.unwrap_err().status(), StatusCode::UNAUTHORIZED);
    }

    #[tokio::test]
    async fn without_the_api_only_local_callers_see_the_status() {
        let reviewing = Metrics {
            auth: MetricsAuth::Kubernetes,
            ..Metrics::default()
        };
        assert!(AccessRules::new(&reviewing, None).is_err());
        let with_audiences = Metrics {
            audiences: vec!["pinfold".to_owned()],
            ..Metrics::default()
        };
        assert!(AccessRules::new(&with_audiences, None).is_err());
        let access = AccessRules::new(&Metrics::default(), None).unwrap();
        let none = HeaderMap::new();
        assert_eq!(
            access.check(ProtectedPath::Status, true, &none).await,
            Ok(())
        );
        assert_eq!(
            access.check(ProtectedPath::Metrics, false, &none).await,
            Ok(())
        );
        let remote = access.check(ProtectedPath::Status, false, &none).await;
        assert_eq!(remote, Err(AccessRefusal::NoApi));
    }

    /// A proxy on this host hides the client's address.
    #[test]
    fn a_request_through_a_proxy_is_not_local() {
        let none = HeaderMap::new();
        assert!(is_on_this_host(true, &none));
        assert!(!is_on_this_host(false, &none));
        for name in PROXY_HEADERS
            .into_iter()
            .chain(["x-forwarded-for", "X-Forwarded-Proto"])
        {
            let address = HeaderValue::from_static("10.0.0.8");
            let headers = HeaderMap::from_iter([(name.parse().unwrap(), address)]);
            assert!(!is_on_this_host(true, &headers), "{name}");
        }
    }
}
