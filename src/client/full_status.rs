//! A request for `/status` in full. An agent sends a short form to callers without the right to read names of pods.

use hyper::body::Bytes;
use serde::Deserialize;

use super::endpoint::Endpoint;

/// The longest quoted reason, in characters.
const MAX_REASON_CHARS: usize = 300;

/// How the words about an agent that does not respond begin.
const NO_RESPONSE: &str = "no response";

#[derive(Deserialize)]
struct RestrictedStatus {
    restricted: String,
}

/// Requests `/status` of an agent.
///
/// # Errors
/// No response in time, or the agent sends the short form.
pub(crate) async fn request(endpoint: &Endpoint) -> anyhow::Result<Bytes> {
    let timeout = endpoint.timeout();
    let bodies = tokio::time::timeout(timeout, endpoint.get(&["/status"]))
        .await
        .unwrap_or_else(|_| {
            Err(anyhow::anyhow!(
                "{NO_RESPONSE} within {} s",
                timeout.as_secs()
            ))
        })?;
    let body = Bytes::from(bodies.concat());
    check(&body)?;
    Ok(body)
}

/// The short form of a status, with the agent's reason.
#[derive(Debug, thiserror::Error)]
#[error("the agent sends only a short status to this host: {0}")]
struct OnlyShort(String);

/// Why there is no full status, in words: the agent's reason for the short form, or else what became of the request.
#[cfg(feature = "portforward")]
pub(crate) fn reason(error: &anyhow::Error) -> String {
    if error.is::<OnlyShort>() {
        error.to_string()
    } else {
        let words = format!("{error:#}");
        if words.starts_with(NO_RESPONSE) {
            words
        } else {
            format!("{NO_RESPONSE}: {words}")
        }
    }
}

/// Whether the agent has not responded at all.
#[cfg(feature = "portforward")]
pub(crate) fn is_absent(error: &anyhow::Error) -> bool {
    !error.is::<OnlyShort>()
}

/// Refuses the short form, with the agent's reason and the remedy.
///
/// # Errors
/// The body is the short form.
pub(super) fn check(body: &[u8]) -> anyhow::Result<()> {
    let Ok(RestrictedStatus { restricted }) = serde_json::from_slice(body) else {
        return Ok(());
    };
    let reason: String = restricted.chars().take(MAX_REASON_CHARS).collect();
    Err(OnlyShort(reason).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_status_is_a_response() {
        let short = check(br#"{"restricted": "no token"}"#).unwrap_err();
        let words = reason(&short);
        assert_eq!(
            words,
            "the agent sends only a short status to this host: no token"
        );
        assert_eq!(reason(&anyhow::anyhow!("refused")), "no response: refused");
    }

    #[test]
    fn the_short_form_is_an_error_with_the_reason() {
        let short = br#"{"restricted": "no bearer token", "ready": true}"#;
        let error = check(short).unwrap_err().to_string();
        assert!(error.ends_with("to this host: no bearer token"), "{error}");
        for other in ["{}", "[]", "", r#"{"enforcement": "cpuset"}"#] {
            check(other.as_bytes()).unwrap();
        }
    }
}
