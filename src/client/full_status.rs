//! A request for `/status` in full. An agent sends a short form to callers without the right to read names of pods.

use hyper::body::Bytes;
use serde::Deserialize;

use super::endpoint::Endpoint;

/// The longest quoted reason, in characters.
const MAX_REASON_CHARS: usize = 300;

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
                "no response within {} s",
                timeout.as_secs()
            ))
        })?;
    let body = Bytes::from(bodies.concat());
    check(&body)?;
    Ok(body)
}

/// Refuses the short form, with the agent's reason and the remedy.
///
/// # Errors
/// The body is the short form.
pub(super) fn check(body: &[u8]) -> anyhow::Result<()> {
    let Ok(RestrictedStatus { restricted }) = serde_json::from_slice(body) else {
        return Ok(());
    };
    let reason = restricted.chars().take(MAX_REASON_CHARS);
    let reason: String = reason.filter(|letter| !letter.is_control()).collect();
    anyhow::bail!("the agent sends only a short status to this host: {reason}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_form_is_an_error_with_the_reason() {
        let short = br#"{"restricted": "no bearer\u001b[2J token", "ready": true}"#;
        let error = check(short).unwrap_err().to_string();
        assert!(
            error.ends_with("to this host: no bearer[2J token"),
            "{error}"
        );
        for other in ["{}", "[]", "", r#"{"enforcement": "cpuset"}"#] {
            check(other.as_bytes()).unwrap();
        }
    }
}
