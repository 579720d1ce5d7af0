//! Why a connection failed, in words: refused, no such name, a certificate that is not trusted.
//!
//! The libraries tell it in layers, such as `client error (Connect): tcp connect error: Connection refused (os error 111)`, and
//! only the innermost layer helps to find the mistake.

use std::error::Error;
use std::io::{self, ErrorKind};

/// What the innermost error says, and what it means to people.
const MEANINGS: [(&str, &str); 11] = [
    (
        "UnknownIssuer",
        "the server's certificate is not trusted, because no known authority has signed it",
    ),
    (
        "BadSignature",
        "the server's certificate is not trusted, because its signature is wrong",
    ),
    (
        "certificate expired",
        "the server's certificate has expired",
    ),
    (
        "certificate not valid yet",
        "the server's certificate is not valid yet, or this machine's clock is wrong",
    ),
    (
        "CaUsedAsEndEntity",
        "the server's certificate is not trusted, because it is that of an authority",
    ),
    (
        "InvalidContentType",
        "the server does not speak TLS: write http:// in its address, or name another port",
    ),
    (
        "received fatal alert: ",
        "the server refused the TLS handshake, as for a missing or wrong client certificate",
    ),
    (
        "failed to lookup address information",
        "the host's name can't be resolved",
    ),
    (
        "connection closed before message completed",
        "the server closed the connection without an answer",
    ),
    (
        "invalid HTTP version parsed",
        "the server does not speak HTTP, or only with TLS",
    ),
    (
        "tls handshake eof",
        "the server closed the connection during the TLS handshake",
    ),
];

/// Why a connection failed, if an error or one of its causes tells it.
pub(crate) fn in_words(error: &(dyn Error + 'static)) -> Option<String> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(words) = meaning(&error.to_string()) {
            return Some(words);
        }
        if let Some(words) = error.downcast_ref().and_then(io_error) {
            return Some(words.to_owned());
        }
        cause = error.source();
    }
    None
}

/// The same for the error of a system call; `None` for an error that has nothing to do with connections.
fn io_error(error: &io::Error) -> Option<&'static str> {
    // An error inside such an error is not one of its causes.
    if let Some(inner) = error.get_ref().and_then(|inner| inner.downcast_ref()) {
        return io_error(inner);
    }
    Some(match error.kind() {
        ErrorKind::ConnectionRefused => "the connection was refused, so no server listens there",
        ErrorKind::ConnectionReset => "the other side reset the connection",
        ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof => {
            "the other side closed the connection"
        }
        ErrorKind::HostUnreachable => "no route leads to the host",
        ErrorKind::NetworkUnreachable => "no route leads to the network",
        ErrorKind::TimedOut => "no answer came to the attempt to connect",
        _ => return None,
    })
}

fn meaning(text: &str) -> Option<String> {
    // The names for which the certificate is valid tell what to correct.
    if let Some((_, names)) = text.split_once("certificate not valid for name ") {
        let names = names.replace("; certificate ", ": it ");
        let names = names.replace("DnsName(\"", "\"").replace("\")", "\"");
        return Some(format!(
            "the server's certificate is not for the name {names}"
        ));
    }
    let mut meanings = MEANINGS.iter();
    let (_, words) = meanings.find(|(theirs, _)| text.contains(theirs))?;
    Some((*words).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A library's layer above another error.
    #[derive(Debug, thiserror::Error)]
    #[error("client error (Connect)")]
    struct Layer(#[source] io::Error);

    #[test]
    fn the_innermost_cause_counts() {
        for (cause, words) in [
            (io::Error::from(ErrorKind::ConnectionRefused), "was refused"),
            (
                io::Error::other(io::Error::from(ErrorKind::ConnectionReset)),
                "the other side reset the connection",
            ),
            (
                io::Error::other("failed to lookup address information: Name or service not known"),
                "can't be resolved",
            ),
            (
                io::Error::new(
                    ErrorKind::InvalidData,
                    "invalid peer certificate: UnknownIssuer",
                ),
                "is not trusted",
            ),
            (
                io::Error::new(
                    ErrorKind::InvalidData,
                    "invalid peer certificate: certificate not valid for name \"a\"; certificate is only valid for DnsName(\"b\")",
                ),
                "is not for the name \"a\": it is only valid for \"b\"",
            ),
        ] {
            let found = in_words(&Layer(cause)).unwrap();
            assert!(found.contains(words), "{found}");
        }
        assert_eq!(in_words(&Layer(io::Error::other("something else"))), None);
        assert_eq!(in_words(&io::Error::from(ErrorKind::NotFound)), None);
    }
}
