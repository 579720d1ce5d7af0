//! An agent's HTTP server, asked: where one is, and what it answers.

use std::fmt;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HOST};
use hyper_util::rt::TokioIo;

use crate::agent::config::{Config, Overrides};

/// The longest answer that is read: that of many thousand containers.
const LONGEST: usize = 64 << 20;

/// How many signs are told of an answer that is no success.
const EXCERPT: usize = 200;

/// The port where agents listen that nobody told otherwise.
const PORT: u16 = 9470;

/// Where an agent is asked: a host, and what comes before each path, as behind a proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    host: String,
    port: u16,
    prefix: String,
}

/// Why a text names no agent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum EndpointError {
    /// Agents serve plain HTTP.
    #[error(
        "{0:?} is not http: agents serve plain HTTP; for one behind TLS, ask through kubectl proxy"
    )]
    Scheme(String),
    /// Anything else.
    #[error("{0:?} names no agent: write http://HOST:9470, HOST:PORT or HOST")]
    Form(String),
}

// === impl Endpoint ===

impl Endpoint {
    /// The agent of this machine: where it is said to listen, or where the configuration says.
    ///
    /// # Errors
    /// A configuration that can't be read.
    pub(super) fn here(agent: Option<SocketAddr>, overrides: Overrides) -> anyhow::Result<Self> {
        let mut address = match agent {
            Some(address) => address,
            None => Config::load(overrides)?.listen,
        };
        // Who listens everywhere listens here.
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
                SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
            });
        }
        Ok(Self {
            host: address.ip().to_string(),
            port: address.port(),
            prefix: String::new(),
        })
    }

    /// A short name for it: what tells it from others.
    pub(super) fn name(&self) -> String {
        match self
            .prefix
            .split('/')
            .rfind(|part| !matches!(*part, "" | "proxy"))
        {
            // Behind a proxy of the API server: .../nodes/http:node-1:9470/proxy.
            Some(part) => match part.split(':').collect::<Vec<_>>()[..] {
                [_, name, _] => name.to_owned(),
                [name, ..] => name.to_owned(),
                [] => part.to_owned(),
            },
            None if self.port == PORT => self.host.clone(),
            None => self.authority(),
        }
    }

    fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Whether an answer comes over no network.
    fn is_near(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    /// The bodies at these paths, one after the other over one connection.
    ///
    /// # Errors
    /// Nobody there, no HTTP, an answer that is none of success, or one that is too long.
    pub(super) async fn get(&self, paths: &[&str]) -> anyhow::Result<Vec<Bytes>> {
        let stream = tokio::net::TcpStream::connect((self.host.as_str(), self.port)).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let answers = async {
            let mut bodies = Vec::new();
            for path in paths {
                sender.ready().await?;
                bodies.push(self.ask(&mut sender, path).await?);
            }
            Ok(bodies)
        };
        tokio::pin!(answers);
        tokio::pin!(connection);
        tokio::select! {
            answers = &mut answers => answers,
            ended = &mut connection => {
                ended?;
                // What came before the end of the connection counts.
                answers.await
            }
        }
    }

    async fn ask(
        &self,
        sender: &mut http1::SendRequest<Empty<Bytes>>,
        path: &str,
    ) -> anyhow::Result<Bytes> {
        let mut request =
            hyper::Request::get(format!("{}{path}", self.prefix)).header(HOST, self.authority());
        if !self.is_near() {
            request = request.header(ACCEPT_ENCODING, "gzip");
        }
        let response = sender.send_request(request.body(Empty::new())?).await?;
        let status = response.status();
        let packed = response
            .headers()
            .get(CONTENT_ENCODING)
            .is_some_and(|coding| coding == "gzip");
        let body = Limited::new(response.into_body(), LONGEST).collect().await;
        let body = body.map_err(|error| {
            if error.is::<LengthLimitError>() {
                anyhow::anyhow!("the answer is longer than {LONGEST} bytes")
            } else {
                anyhow::anyhow!("{error}")
            }
        });
        let mut body = body?.to_bytes();
        if packed {
            body = unpacked(&body)?;
        }
        anyhow::ensure!(status.is_success(), "{status}: {}", excerpt(&body));
        Ok(body)
    }
}

/// The beginning of what was said instead, without what would act on a terminal.
fn excerpt(body: &[u8]) -> String {
    // No sign takes more bytes than four.
    let text = String::from_utf8_lossy(body.get(..4 * EXCERPT).unwrap_or(body));
    let shown = text.trim().chars().take(EXCERPT);
    shown
        .map(|c| {
            if c.is_control() {
                char::REPLACEMENT_CHARACTER
            } else {
                c
            }
        })
        .collect()
}

/// What was compressed, as far as it is not too long.
fn unpacked(body: &[u8]) -> anyhow::Result<Bytes> {
    let mut whole = Vec::new();
    let most = u64::try_from(LONGEST)?;
    flate2::read::GzDecoder::new(body)
        .take(most + 1)
        .read_to_end(&mut whole)?;
    anyhow::ensure!(
        whole.len() <= LONGEST,
        "the answer is longer than {LONGEST} bytes"
    );
    Ok(whole.into())
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority(), self.prefix)
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let form = || EndpointError::Form(text.to_owned());
        let whole = if text.contains("://") {
            text.to_owned()
        } else {
            format!("http://{text}")
        };
        let url: hyper::Uri = whole.parse().map_err(|_| form())?;
        if url.scheme_str() != Some("http") {
            return Err(EndpointError::Scheme(text.to_owned()));
        }
        let authority = url.authority().ok_or_else(form)?;
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let port_told = authority
            .as_str()
            .rsplit(']')
            .next()
            .is_some_and(|rest| rest.contains(':'));
        let port = match authority.port_u16() {
            Some(port) => port,
            None if port_told => return Err(form()),
            None => PORT,
        };
        if host.is_empty() || authority.as_str().contains('@') || url.query().is_some() {
            return Err(form());
        }
        // Whoever copies the address of the status means the agent.
        let path = url.path().trim_end_matches('/');
        let prefix = path
            .strip_suffix("/status")
            .or_else(|| path.strip_suffix("/metrics"))
            .unwrap_or(path);
        Ok(Self {
            host,
            port,
            prefix: prefix.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_are_named_in_many_ways() {
        for (text, whole, name) in [
            ("node-1", "http://node-1:9470", "node-1"),
            ("node-1:9471", "http://node-1:9471", "node-1:9471"),
            ("http://10.0.0.7/", "http://10.0.0.7:9470", "10.0.0.7"),
            ("http://[::1]:9470/status", "http://[::1]:9470", "::1"),
            ("[fe80::1]", "http://[fe80::1]:9470", "fe80::1"),
            ("[fe80::1]:81", "http://[fe80::1]:81", "[fe80::1]:81"),
            (
                "http://127.0.0.1:8001/api/v1/nodes/http:node-7:9470/proxy/",
                "http://127.0.0.1:8001/api/v1/nodes/http:node-7:9470/proxy",
                "node-7",
            ),
            (
                "http://proxy/node-8/metrics",
                "http://proxy:9470/node-8",
                "node-8",
            ),
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(
                (endpoint.to_string().as_str(), endpoint.name().as_str()),
                (whole, name),
                "{text}"
            );
        }
        assert_eq!(
            "https://node-1".parse::<Endpoint>().unwrap_err(),
            EndpointError::Scheme("https://node-1".into())
        );
        for text in [
            "",
            "http://",
            "node 1",
            "node-1:x",
            "node-1:70000",
            "http://u:p@node-1",
            "http://a/?b=c",
        ] {
            assert_eq!(
                text.parse::<Endpoint>().unwrap_err(),
                EndpointError::Form(text.into()),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_said_instead_is_told_in_short() {
        assert_eq!(excerpt(b" not ready\x1b[2J\n"), "not ready\u{fffd}[2J");
        assert_eq!(excerpt(&[0xff; 5000]).chars().count(), EXCERPT);
        assert_eq!(excerpt("漢".repeat(5000).as_bytes()), "漢".repeat(EXCERPT));
        assert_eq!(excerpt(b""), "");
    }

    #[test]
    fn what_unpacks_to_too_much_is_refused() {
        use std::io::Write;
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(b"some").unwrap();
        assert_eq!(unpacked(&packer.finish().unwrap()).unwrap(), "some");
        assert!(unpacked(b"no gzip").is_err());
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let zeros = vec![0; 1 << 20];
        (0..65).for_each(|_| packer.write_all(&zeros).unwrap());
        assert!(
            unpacked(&packer.finish().unwrap())
                .unwrap_err()
                .to_string()
                .contains("longer")
        );
    }
}
