//! The HTTP API of a Prometheus: instant and range queries, with a deadline and a limit of the answer's length.
//!
//! `kube::Client` sends the requests, with TLS, a bearer token and a path prefix. The crate
//! `prometheus-http-query` (0.9) would send the same two kinds of queries through a second HTTP
//! client, `reqwest`, and bring 39 further packages, among them `aws-lc-sys`, whose C code needs a
//! C compiler. [`experiment::series`](crate::experiment::series) has the queries and evaluates the
//! answers.

#![warn(clippy::too_many_lines, clippy::excessive_nesting)]

mod gather;
mod source;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::{Request, StatusCode, Uri};
use kube::client::Body;

#[cfg(feature = "lab")]
pub(crate) use gather::whole_seconds;
pub use gather::{GatherError, RequestedRun, discover, gather};
pub use source::{QuerySource, Window};

use crate::cluster::{AGENT, short, words};
use crate::experiment::series::{Answer, AnswerError, read_answer};

/// The longest answer, in bytes: some thousand series of some hundred values stay below.
const LONGEST_ANSWER: usize = 64 << 20;

/// The longest file with a token, a password or certificates, in bytes.
const LONGEST_FILE: u64 = 4 << 20;

/// The longest query for GET, which more proxies allow than POST. Longer queries use POST.
const LONGEST_GET: usize = 3000;

/// The timeout of a new connection.
const CONNECT: Duration = Duration::from_secs(10);

/// The reason why a query has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PrometheusError {
    #[error(
        "{url:?} is not the URL of a Prometheus server: {why}; write a URL like http://prometheus.monitoring:9090"
    )]
    Url { url: String, why: String },
    #[error("{what} {}: {why}", path.display())]
    File {
        /// The purpose of the file.
        what: &'static str,
        path: PathBuf,
        why: String,
    },
    /// A failed or broken connection.
    #[error("can't reach {url}: {why} (query: {query})")]
    Connection {
        url: String,
        query: String,
        why: String,
    },
    /// No answer in time.
    #[error("{url} gave no answer within {} s: raise --timeout (query: {query})", within.as_secs())]
    Timeout {
        url: String,
        query: String,
        within: Duration,
    },
    /// An answer that is too long.
    #[error(
        "the answer of {url} has more than {} MiB: limit the report with --job, --job-namespace, --case or a shorter time (query: \
         {query})",
        LONGEST_ANSWER >> 20
    )]
    TooLong { url: String, query: String },
    #[error("{url} refused the query: {why} (query: {query})")]
    Refused {
        url: String,
        query: String,
        why: String,
    },
    /// An answer that does not come from a Prometheus.
    #[error("the server at {url} is not a Prometheus server: {why} (query: {query})")]
    Shape {
        url: String,
        query: String,
        why: String,
    },
}

/// The credentials for a Prometheus or its proxy.
#[derive(Debug, Clone, Copy, Default)]
pub struct PrometheusAccess<'a> {
    /// A file with a bearer token.
    pub token: Option<&'a Path>,
    /// A file with a name and a password, as `name:password`.
    pub user: Option<&'a Path>,
    /// A file with the authorities of the server's certificate.
    pub authority: Option<&'a Path>,
}

#[derive(Clone)]
pub struct Prometheus {
    client: kube::Client,
    url: String,
    deadline: Duration,
}

impl std::fmt::Debug for Prometheus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prometheus")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

// === impl Prometheus ===

impl Prometheus {
    /// The Prometheus at a URL, without asking it; each answer may take as long as `deadline`. To be called in a runtime.
    ///
    /// # Errors
    /// The text is no URL, or a file can't be used.
    pub fn new(
        url: &str,
        access: PrometheusAccess<'_>,
        deadline: Duration,
    ) -> Result<Self, PrometheusError> {
        let wrong = |why: &str| PrometheusError::Url {
            url: without_password(url),
            why: why.to_owned(),
        };
        let uri: Uri = url
            .parse()
            .map_err(|error: hyper::http::uri::InvalidUri| wrong(&error.to_string()))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(wrong("the scheme is neither http nor https"));
        }
        if uri
            .authority()
            .is_some_and(|authority| authority.as_str().contains('@'))
        {
            return Err(wrong(
                "the URL has a name or a password: write these to a file (--user-file, or --token-file for a bearer token)",
            ));
        }
        if uri.query().is_some() {
            return Err(wrong("the URL has a query"));
        }
        let mut config = kube::Config::new(uri);
        // The caller can repeat each query.
        config.default_retry = false;
        config.connect_timeout = Some(CONNECT);
        if let Some(path) = access.token {
            let token = secret("the token file", path, |text| {
                text.contains(char::is_whitespace)
            })?;
            config.auth_info.token = Some(token.into());
        }
        if let Some(path) = access.user {
            let text = secret("the user file", path, |_| false)?;
            let Some((name, password)) = text.split_once(':').filter(|(name, _)| !name.is_empty())
            else {
                let (what, why) = (
                    "the user file",
                    "write name:password into the file".to_owned(),
                );
                return Err(PrometheusError::File {
                    what,
                    path: path.to_owned(),
                    why,
                });
            };
            config.auth_info.username = Some(name.to_owned());
            config.auth_info.password = Some(password.to_owned().into());
        }
        if let Some(path) = access.authority {
            read("the certificate authority's file", path)?;
            config.root_cert_file = Some(path.to_owned());
        }
        let agent = hyper::header::HeaderValue::from_static(AGENT);
        config.headers.push((hyper::header::USER_AGENT, agent));
        let client = kube::Client::try_from(config).map_err(|error| match access.authority {
            Some(path) => {
                let (what, why) = ("the certificate authority's file", words(&error));
                PrometheusError::File {
                    what,
                    path: path.to_owned(),
                    why,
                }
            }
            None => wrong(&words(&error)),
        })?;
        Ok(Self {
            client,
            url: url.trim_end_matches('/').to_owned(),
            deadline,
        })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// The answer to a query at a time, in seconds since 1970.
    ///
    /// # Errors
    /// Any [`PrometheusError`] that names URL and query.
    pub async fn instant(&self, query: &str, at: f64) -> Result<Answer, PrometheusError> {
        self.ask("query", query, &[("time", at)]).await
    }

    /// The answer to a query over a time range, every `step` seconds.
    ///
    /// # Errors
    /// Any [`PrometheusError`] that names URL and query.
    pub async fn range(
        &self,
        query: &str,
        from: f64,
        to: f64,
        step: f64,
    ) -> Result<Answer, PrometheusError> {
        self.ask(
            "query_range",
            query,
            &[("start", from), ("end", to), ("step", step)],
        )
        .await
    }

    /// Sends a query to an endpoint of the API, and evaluates the response.
    async fn ask(
        &self,
        what: &str,
        query: &str,
        numbers: &[(&str, f64)],
    ) -> Result<Answer, PrometheusError> {
        let path = format!("/api/v1/{what}");
        let sent = SentQuery {
            url: format!("{}{path}", self.url),
            query: short(query),
        };
        let request = request(&path, form(query, numbers))
            .map_err(|error| sent.connection_error(error.to_string()))?;
        let response = tokio::time::timeout(self.deadline, self.receive(request, &sent))
            .await
            .unwrap_or_else(|_| Err(sent.timeout_error(self.deadline)))?;
        response.evaluate(&sent)
    }

    /// Sends a request, and reads the whole response.
    async fn receive(
        &self,
        request: Request<Body>,
        sent: &SentQuery,
    ) -> Result<ServerResponse, PrometheusError> {
        let response = self
            .client
            .send(request)
            .await
            .map_err(|error| sent.connection_error(words(&error)))?;
        let status = response.status();
        let location = response.headers().get(hyper::header::LOCATION);
        let location = location.map(|place| String::from_utf8_lossy(place.as_bytes()).into_owned());
        let body = Limited::new(response.into_body(), LONGEST_ANSWER)
            .collect()
            .await;
        let body = body.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
            Some(_) => sent.length_error(),
            None => sent.connection_error(words(&*error)),
        })?;
        Ok(ServerResponse {
            status,
            location,
            body: body.to_bytes(),
        })
    }
}

/// A query that was sent, as errors name it.
struct SentQuery {
    url: String,
    query: String,
}

// === impl SentQuery ===

impl SentQuery {
    fn connection_error(&self, why: String) -> PrometheusError {
        PrometheusError::Connection {
            url: self.url.clone(),
            query: self.query.clone(),
            why,
        }
    }

    fn timeout_error(&self, within: Duration) -> PrometheusError {
        PrometheusError::Timeout {
            url: self.url.clone(),
            query: self.query.clone(),
            within,
        }
    }

    fn length_error(&self) -> PrometheusError {
        PrometheusError::TooLong {
            url: self.url.clone(),
            query: self.query.clone(),
        }
    }

    fn refusal(&self, why: &str) -> PrometheusError {
        PrometheusError::Refused {
            url: self.url.clone(),
            query: self.query.clone(),
            why: short(why),
        }
    }

    fn shape_error(&self, why: &str) -> PrometheusError {
        PrometheusError::Shape {
            url: self.url.clone(),
            query: self.query.clone(),
            why: short(why),
        }
    }
}

struct ServerResponse {
    status: StatusCode,
    /// The target of a redirect.
    location: Option<String>,
    body: Bytes,
}

// === impl ServerResponse ===

impl ServerResponse {
    /// The answer of Prometheus, or the error that the status and the content mean.
    fn evaluate(&self, sent: &SentQuery) -> Result<Answer, PrometheusError> {
        let status = self.status;
        match read_answer(&self.body) {
            Ok(answer) if status.is_success() => Ok(answer),
            Err(AnswerError::Refused { kind, message }) => {
                Err(sent.refusal(&format!("{status}, {kind}: {message}")))
            }
            Err(AnswerError::Shape(why)) if status.is_success() => Err(sent.shape_error(&why)),
            // A redirect to a login, which the client does not follow with a token.
            _ if status.is_redirection() => {
                let location = self.location.as_deref().unwrap_or("another address");
                Err(sent.refusal(&format!("{status}, the server redirects to {location}")))
            }
            // A proxy's page.
            _ => Err(sent.refusal(&format!(
                "{status}: {}",
                String::from_utf8_lossy(&self.body).trim()
            ))),
        }
    }
}

fn form(query: &str, numbers: &[(&str, f64)]) -> String {
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.append_pair("query", query);
    for (name, number) in numbers {
        form.append_pair(name, &format!("{number:.3}"));
    }
    form.finish()
}

/// A GET request, or a POST request for long parameters.
fn request(path: &str, form: String) -> Result<Request<Body>, hyper::http::Error> {
    if form.len() <= LONGEST_GET {
        return Request::get(format!("{path}?{form}")).body(Body::empty());
    }
    Request::post(path)
        .header(
            hyper::header::CONTENT_TYPE,
            "application/x-www-form-urlencoded",
        )
        .body(Body::from(form.into_bytes()))
}

fn without_password(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url),
    };
    let end = rest.find('/').unwrap_or(rest.len());
    match rest.get(..end).and_then(|authority| authority.rfind('@')) {
        Some(at) => format!("{scheme}…{}", rest.get(at..).unwrap_or_default()),
        None => url.to_owned(),
    }
}

/// The content of a file for a header.
fn secret(
    what: &'static str,
    path: &Path,
    unfit: impl Fn(&str) -> bool,
) -> Result<String, PrometheusError> {
    let text = read(what, path)?.trim().to_owned();
    if text.contains(char::is_control) || unfit(&text) {
        let why = "the file has more than one line or word".to_owned();
        return Err(PrometheusError::File {
            what,
            path: path.to_owned(),
            why,
        });
    }
    Ok(text)
}

fn read(what: &'static str, path: &Path) -> Result<String, PrometheusError> {
    let wrong = |why: String| PrometheusError::File {
        what,
        path: path.to_owned(),
        why,
    };
    let file = std::fs::File::open(path).map_err(|error| wrong(error.to_string()))?;
    let mut text = String::new();
    file.take(LONGEST_FILE + 1)
        .read_to_string(&mut text)
        .map_err(|error| wrong(error.to_string()))?;
    match text.trim() {
        "" => Err(wrong("the file is empty".to_owned())),
        _ if text.len() as u64 > LONGEST_FILE => Err(wrong(format!(
            "the file has more than {} MiB",
            LONGEST_FILE >> 20
        ))),
        _ => Ok(text),
    }
}
