//! [`Endpoint`]: the address of an agent's HTTP server, and requests to it.

use std::fmt;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, HOST, HeaderValue};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::text::connection;

/// The longest accepted response, in bytes: enough for many thousand containers.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

/// The characters of an error response's body that the error message quotes.
const EXCERPT_CHARS: usize = 200;

const DEFAULT_PORT: u16 = 9470;

/// The time limit of the requests to an agent with an address. A healthy agent answers sooner.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(5);

/// The time limit of the requests to an agent behind a route, where the API server and the kubelet
/// open the connection first.
const ROUTE_TIMEOUT: Duration = Duration::from_secs(15);

/// A connection to an agent.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// The connection that a [`Route`] opens.
pub(crate) type Opening<'a> =
    Pin<Box<dyn Future<Output = anyhow::Result<Box<dyn Stream>>> + Send + 'a>>;

/// Opens connections to an agent without an address on this network.
pub(crate) trait Route: fmt::Debug + Send + Sync {
    fn open(&self) -> Opening<'_>;
}

/// The address of an agent: host, port, and a prefix of every path, as a proxy needs.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    host: String,
    port: u16,
    prefix: String,
    /// Opens the connections instead of the network. The host is then a name for people.
    route: Option<Arc<dyn Route>>,
    /// The value of the header `Authorization` for an agent on another host.
    authorization: Option<HeaderValue>,
}

/// The reason why a text is no valid agent address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EndpointError {
    /// The URL's scheme is not `http`; agents serve plain HTTP.
    #[error(
        "the scheme of {0:?} is not http: agents serve plain HTTP; write http://HOST:9470, or reach the agents of a cluster \
         with --cluster"
    )]
    Scheme(String),
    /// The text is no host, and no URL.
    #[error("{0:?} is not the address of an agent: write http://HOST:9470, HOST:PORT or HOST")]
    Form(String),
}

// === impl Endpoint ===

impl Endpoint {
    /// The agent of this host that listens on `address`.
    pub(crate) fn on_this_host(mut address: SocketAddr) -> Self {
        // An agent that listens on every address also listens on the loopback address.
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
                SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
            });
        }
        Self {
            host: address.ip().to_string(),
            port: address.port(),
            prefix: String::new(),
            route: None,
            authorization: None,
        }
    }

    /// The agent behind a route. The name is for people, and valid as a host of a URL.
    #[cfg(feature = "portforward")]
    pub(crate) fn behind(route: Arc<dyn Route>, name: &str) -> Self {
        Self {
            host: name.to_owned(),
            port: DEFAULT_PORT,
            prefix: String::new(),
            route: Some(route),
            authorization: None,
        }
    }

    /// Sends the header `Authorization` with each request that leaves this host. Agents serve plain HTTP, so the value travels
    /// unencrypted.
    #[cfg(any(feature = "top", test))]
    pub(crate) fn with_authorization(self, authorization: Option<HeaderValue>) -> Self {
        Self {
            authorization,
            ..self
        }
    }

    pub(crate) fn timeout(&self) -> Duration {
        if self.route.is_some() {
            ROUTE_TIMEOUT
        } else {
            ADDRESS_TIMEOUT
        }
    }

    async fn open(&self) -> anyhow::Result<Box<dyn Stream>> {
        if let Some(route) = &self.route {
            return route.open().await;
        }
        let stream = tokio::net::TcpStream::connect((self.host.as_str(), self.port)).await?;
        Ok(Box::new(stream))
    }

    /// A short name of the agent, for people.
    #[cfg(any(feature = "top", test))]
    pub(crate) fn name(&self) -> String {
        match self
            .prefix
            .split('/')
            .rfind(|part| !matches!(*part, "" | "proxy"))
        {
            // A path of the API server's proxy: .../nodes/http:node-1:9470/proxy.
            Some(part) => match part.split(':').collect::<Vec<_>>()[..] {
                [_, name, _] => name.to_owned(),
                [name, ..] => name.to_owned(),
                [] => part.to_owned(),
            },
            None if self.port == DEFAULT_PORT => self.host.clone(),
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

    /// Whether requests stay on this host.
    fn is_loopback(&self) -> bool {
        let is_address = self.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        self.route.is_none() && (self.host == "localhost" || is_address)
    }

    /// Requests the paths in order over the same connection, and returns the bodies.
    ///
    /// # Errors
    /// No connection, no HTTP, a status code other than 2xx, or a response that is too long.
    pub(crate) async fn get(&self, paths: &[&str]) -> anyhow::Result<Vec<Bytes>> {
        let bodies = self.exchange(paths).await;
        bodies.map_err(|error| {
            // What a server wrote into a response stays as it is.
            let is_connection = error.is::<std::io::Error>() || error.is::<hyper::Error>();
            let words = is_connection.then(|| connection::in_words(error.as_ref()));
            words.flatten().map_or(error, anyhow::Error::msg)
        })
    }

    async fn exchange(&self, paths: &[&str]) -> anyhow::Result<Vec<Bytes>> {
        let stream = self.open().await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let responses = async {
            let mut bodies = Vec::new();
            for path in paths {
                sender.ready().await?;
                bodies.push(self.request(&mut sender, path).await?);
            }
            Ok(bodies)
        };
        tokio::pin!(responses);
        tokio::pin!(connection);
        tokio::select! {
            bodies = &mut responses => bodies,
            ended = &mut connection => {
                ended?;
                // Responses that arrived before the end of the connection are valid.
                responses.await
            }
        }
    }

    async fn request(
        &self,
        sender: &mut http1::SendRequest<Empty<Bytes>>,
        path: &str,
    ) -> anyhow::Result<Bytes> {
        let mut request =
            hyper::Request::get(format!("{}{path}", self.prefix)).header(HOST, self.authority());
        if !self.is_loopback() {
            request = request.header(ACCEPT_ENCODING, "gzip");
            if let Some(authorization) = &self.authorization {
                request = request.header(AUTHORIZATION, authorization.clone());
            }
        }
        let response = sender.send_request(request.body(Empty::new())?).await?;
        let status = response.status();
        let is_compressed = response
            .headers()
            .get(CONTENT_ENCODING)
            .is_some_and(|coding| coding == "gzip");
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES)
            .collect()
            .await;
        let body = body.map_err(|error| {
            if error.is::<LengthLimitError>() {
                anyhow::anyhow!("the response is longer than {MAX_RESPONSE_BYTES} bytes")
            } else {
                anyhow::anyhow!("{error}")
            }
        });
        let mut body = body?.to_bytes();
        if is_compressed {
            body = decompress(&body)?;
        }
        anyhow::ensure!(status.is_success(), "{status}: {}", excerpt(&body));
        Ok(body)
    }
}

/// The beginning of an error response's body.
fn excerpt(body: &[u8]) -> String {
    // A character takes at most four bytes.
    let text = String::from_utf8_lossy(body.get(..4 * EXCERPT_CHARS).unwrap_or(body));
    text.trim().chars().take(EXCERPT_CHARS).collect()
}

/// Decompresses a gzip body up to the accepted length.
fn decompress(body: &[u8]) -> anyhow::Result<Bytes> {
    let mut content = Vec::new();
    let limit = u64::try_from(MAX_RESPONSE_BYTES)?;
    flate2::read::GzDecoder::new(body)
        .take(limit + 1)
        .read_to_end(&mut content)?;
    anyhow::ensure!(
        content.len() <= MAX_RESPONSE_BYTES,
        "the response is longer than {MAX_RESPONSE_BYTES} bytes"
    );
    Ok(content.into())
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.route.is_some() {
            return write!(f, "agent {}", self.host);
        }
        write!(f, "http://{}{}", self.authority(), self.prefix)
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let form = || EndpointError::Form(text.to_owned());
        let url = if text.contains("://") {
            text.to_owned()
        } else {
            format!("http://{text}")
        };
        let url: hyper::Uri = url.parse().map_err(|_| form())?;
        if url.scheme_str() != Some("http") {
            return Err(EndpointError::Scheme(text.to_owned()));
        }
        let authority = url.authority().ok_or_else(form)?;
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let has_port = authority
            .as_str()
            .rsplit(']')
            .next()
            .is_some_and(|rest| rest.contains(':'));
        let port = match authority.port_u16() {
            Some(port) => port,
            None if has_port => return Err(form()),
            None => DEFAULT_PORT,
        };
        if host.is_empty() || authority.as_str().contains('@') || url.query().is_some() {
            return Err(form());
        }
        // A copied address of `/status` or `/metrics` names the agent.
        let path = url.path().trim_end_matches('/');
        let prefix = path
            .strip_suffix("/status")
            .or_else(|| path.strip_suffix("/metrics"))
            .unwrap_or(path);
        Ok(Self {
            host,
            port,
            prefix: prefix.to_owned(),
            route: None,
            authorization: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_many_forms() {
        for (text, url, name) in [
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
                (url, name),
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

    /// A route to a server in this process, which sends the head of the request as the body.
    #[derive(Debug)]
    struct HeadAsBody;

    impl Route for HeadAsBody {
        fn open(&self) -> Opening<'_> {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            let (client, mut server) = tokio::io::duplex(64 << 10);
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(server.read_u8().await.unwrap());
                }
                let length = head.len();
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
                server.write_all(answer.as_bytes()).await.unwrap();
                server.write_all(&head).await.unwrap();
            });
            Box::pin(std::future::ready(Ok(Box::new(client) as Box<dyn Stream>)))
        }
    }

    #[tokio::test]
    async fn a_request_that_leaves_this_host_has_the_token() {
        let endpoint = Endpoint {
            route: Some(Arc::new(HeadAsBody)),
            ..Endpoint::on_this_host(SocketAddr::from(([127, 0, 0, 1], DEFAULT_PORT)))
        };
        assert_eq!(endpoint.timeout(), ROUTE_TIMEOUT);
        let head = |bodies: Vec<Bytes>| String::from_utf8(bodies.concat()).unwrap();
        let without = head(endpoint.get(&["/status"]).await.unwrap());
        assert!(without.starts_with("GET /status HTTP/1.1\r\n"), "{without}");
        assert!(!without.contains("authorization"), "{without}");
        let token = HeaderValue::from_static("Bearer abc");
        let endpoint = endpoint.with_authorization(Some(token));
        let with = head(endpoint.get(&["/status"]).await.unwrap());
        assert!(with.contains("\r\nauthorization: Bearer abc\r\n"), "{with}");
    }

    #[test]
    fn an_error_message_quotes_the_beginning_of_the_body() {
        assert_eq!(excerpt(b" not ready\n"), "not ready");
        assert_eq!(excerpt(&[0xff; 5000]).chars().count(), EXCERPT_CHARS);
        assert_eq!(
            excerpt("漢".repeat(5000).as_bytes()),
            "漢".repeat(EXCERPT_CHARS)
        );
        assert_eq!(excerpt(b""), "");
    }

    #[test]
    fn a_body_that_decompresses_to_too_many_bytes_is_refused() {
        use std::io::Write;
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(b"some").unwrap();
        assert_eq!(decompress(&packer.finish().unwrap()).unwrap(), "some");
        assert!(decompress(b"no gzip").is_err());
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let zeros = vec![0; 1 << 20];
        (0..65).for_each(|_| packer.write_all(&zeros).unwrap());
        assert!(
            decompress(&packer.finish().unwrap())
                .unwrap_err()
                .to_string()
                .contains("longer")
        );
    }
}
