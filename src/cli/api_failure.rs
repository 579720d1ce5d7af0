//! Failed requests to the API server: what failed, why, and what a user can do about it, in this order.

use crate::cluster::{ErrorKind, Failure};

/// The error of a command: `doing` says what failed and where. `rights` is the remedy if the server forbids it.
pub(super) fn explained(failure: &Failure, doing: &str, rights: &str) -> anyhow::Error {
    anyhow::anyhow!("{doing}: {failure}; {}", remedy(failure, rights))
}

fn remedy<'a>(failure: &Failure, rights: &'a str) -> &'a str {
    match failure.kind() {
        ErrorKind::Forbidden => rights,
        ErrorKind::Unauthorized => "check the token or the client certificate in the kubeconfig",
        ErrorKind::Connection if failure.to_string().contains("certificate") => {
            "check the server and its certificate-authority in the kubeconfig"
        }
        ErrorKind::Connection | ErrorKind::Timeout => {
            "check that the API server runs there, and that this machine reaches it"
        }
        ErrorKind::NotFound => "check the names",
        ErrorKind::InvalidResponse => "check that this is the address of an API server",
        _ => "try again",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_comes_before_the_remedy() {
        for (failure, end) in [
            (
                Failure::Connection("the connection was refused".to_owned()),
                "the connection was refused; check that the API server runs there, and that this machine reaches it",
            ),
            (
                Failure::Connection("the server's certificate has expired".to_owned()),
                "has expired; check the server and its certificate-authority in the kubeconfig",
            ),
        ] {
            let error = explained(&failure, "can't list nodes at https://a", "ask").to_string();
            assert!(
                error.starts_with(
                    "can't list nodes at https://a: the API server can't be reached: "
                ),
                "{error}"
            );
            assert!(error.ends_with(end), "{error}");
        }
    }
}
