//! [`PatientApi`]: requests of a command that runs for hours and must outlast a restart of the API server.
//!
//! Every request may be sent again after an answer that got lost, so callers need requests that do no harm the second time: a
//! creation that finds its own object has succeeded, and so has the deletion of a missing one.

use std::time::Duration;

use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request};
use kube::core::params::{DeleteParams, ListParams};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::list::{List, list};
use super::{Api, Backoff, Call, ErrorKind, Failure, Jitter};

/// The shortest and the longest wait before a request is repeated.
const WAITS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));

/// How long the log of a container may take. Logs can be long, and connections slow.
const LOG_DEADLINE: Duration = Duration::from_secs(300);

/// The number of objects on a page.
const PAGE: u32 = 500;

/// What became of a creation.
#[derive(Debug, Clone, PartialEq)]
pub enum Creation {
    /// The object as the server stored it.
    Created(Value),
    /// An object with the name exists: the caller's own, if an answer got lost.
    Exists,
}

/// An API client that repeats failed requests for a while. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PatientApi {
    api: Api,
    /// How long a request is repeated after its first failure.
    patience: Duration,
    /// How long a refusal (401, 403) is repeated.
    forgives: Duration,
}

// === impl PatientApi ===

impl PatientApi {
    /// A client that repeats a request for `patience` while the server can't be reached, is overloaded or fails.
    pub fn new(api: Api, patience: Duration) -> Self {
        Self {
            api,
            patience,
            forgives: Duration::ZERO,
        }
    }

    /// A client that also repeats refusals for `time`: a server that has just started refuses everybody until it has read its roles.
    #[must_use]
    pub fn forgiving(self, time: Duration) -> Self {
        Self {
            forgives: time,
            ..self
        }
    }

    /// The client beneath, which repeats nothing.
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// An object; `None` if there is none.
    ///
    /// # Errors
    /// Any other [`Failure`].
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, Failure> {
        match self.send(&Method::GET, path, None).await {
            Ok(object) => Ok(Some(object)),
            Err(failure) if failure.kind() == ErrorKind::NotFound => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// All objects of a collection that fit a label selector. `kind` is the kind of the list, such as `PodList`.
    ///
    /// # Errors
    /// Any [`Failure`].
    pub async fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        kind: &str,
        params: ListParams,
    ) -> Result<Vec<T>, Failure> {
        self.repeat(|| async {
            let wanted = List::new(Call::Other, path, kind).with(params.clone().limit(PAGE));
            self.listed(wanted).await
        })
        .await
    }

    /// The metadata of all objects of a collection that fit a selector, which is much smaller than the objects.
    ///
    /// # Errors
    /// Any [`Failure`].
    pub async fn list_metadata<T: DeserializeOwned>(
        &self,
        path: &str,
        params: ListParams,
    ) -> Result<Vec<T>, Failure> {
        self.repeat(|| async {
            let wanted = List::new(Call::Other, path, "").with(params.clone().limit(PAGE));
            self.listed(wanted.of_metadata()).await
        })
        .await
    }

    async fn listed<T: DeserializeOwned>(&self, wanted: List<'_>) -> Result<Vec<T>, Failure> {
        let mut objects = Vec::new();
        let take = |object: Box<RawValue>| {
            objects.push(serde_json::from_str(object.get()).map_err(Failure::invalid)?);
            Ok(())
        };
        list(&self.api, wanted, take).await?;
        Ok(objects)
    }

    /// Creates an object in a collection.
    ///
    /// # Errors
    /// Any [`Failure`] but that the object exists.
    pub async fn create(&self, path: &str, object: &Value) -> Result<Creation, Failure> {
        match self.post::<Value>(path, object).await {
            Ok(object) => Ok(Creation::Created(object)),
            Err(failure) if failure.kind() == ErrorKind::Conflict => Ok(Creation::Exists),
            Err(failure) => Err(failure),
        }
    }

    /// Posts an object, and returns what the server answers.
    ///
    /// # Errors
    /// Any [`Failure`].
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        object: &Value,
    ) -> Result<T, Failure> {
        let body = ("application/json", object.to_string());
        self.send(&Method::POST, path, Some(body)).await
    }

    /// Changes some fields of an object (a JSON merge patch). With a resourceVersion in the patch, a change by somebody else in
    /// between is a conflict.
    ///
    /// # Errors
    /// Any [`Failure`].
    pub async fn merge(&self, path: &str, patch: &Value) -> Result<Value, Failure> {
        let body = ("application/merge-patch+json", patch.to_string());
        self.send(&Method::PATCH, path, Some(body)).await
    }

    /// Deletes an object, and lets the server delete what it owns afterwards. A missing object counts as deleted.
    ///
    /// # Errors
    /// Any other [`Failure`].
    pub async fn delete(&self, path: &str) -> Result<(), Failure> {
        let options =
            json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"});
        let body = ("application/json", options.to_string());
        match self.send::<Value>(&Method::DELETE, path, Some(body)).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.kind() == ErrorKind::NotFound => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// Deletes all objects of a collection that fit a selector, and lets the server delete what they own afterwards. A missing
    /// namespace has none.
    ///
    /// # Errors
    /// Any [`Failure`].
    pub async fn delete_all(&self, path: &str, params: ListParams) -> Result<(), Failure> {
        let options = DeleteParams::background();
        self.repeat(|| async {
            let request = kube::core::request::Request::new(path)
                .delete_collection(&options, &params)
                .map_err(|error| self.api.unbuilt(error))?;
            self.api.ask::<Value>(Call::Other, request).await
        })
        .await?;
        Ok(())
    }

    /// What a container has written, each line after the runtime's time of it; `None` without such a pod, and for a container that has
    /// not begun.
    ///
    /// # Errors
    /// Any other [`Failure`].
    pub async fn log(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
    ) -> Result<Option<String>, Failure> {
        let path = format!(
            "/api/v1/namespaces/{namespace}/pods/{pod}/log?container={container}&timestamps=true"
        );
        let text = self
            .repeat(|| async {
                let request = self.request(&Method::GET, &path, None)?;
                let api = self.api.with_deadline(LOG_DEADLINE);
                api.text(Call::Other, request).await
            })
            .await;
        match text {
            Ok(text) => Ok(Some(text)),
            Err(failure) if matches!(failure.kind(), ErrorKind::NotFound | ErrorKind::Refused) => {
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: &Method,
        path: &str,
        body: Option<(&'static str, String)>,
    ) -> Result<T, Failure> {
        self.repeat(|| async {
            let request = self.request(method, path, body.as_ref())?;
            self.api.ask(Call::Other, request).await
        })
        .await
    }

    fn request(
        &self,
        method: &Method,
        path: &str,
        body: Option<&(&'static str, String)>,
    ) -> Result<Request<Vec<u8>>, Failure> {
        let mut request = Request::builder().method(method.clone()).uri(path);
        let mut bytes = Vec::new();
        if let Some((form, text)) = body {
            request = request.header(CONTENT_TYPE, *form);
            bytes.extend_from_slice(text.as_bytes());
        }
        request.body(bytes).map_err(|error| self.api.unbuilt(error))
    }

    /// Sends a request until it succeeds, fails for good, or the time for repeats is over.
    ///
    /// # Errors
    /// Any [`Failure`].
    pub async fn repeat<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        mut request: impl FnMut() -> F,
    ) -> Result<T, Failure> {
        let (mut backoff, mut jitter) = (Backoff::new(WAITS.0, WAITS.1), Jitter::default());
        let mut until = None;
        loop {
            let failure = match request().await {
                Err(failure) => failure,
                answer => return answer,
            };
            let time = match failure.kind() {
                _ if failure.is_retryable() => self.patience,
                ErrorKind::Forbidden | ErrorKind::Unauthorized => self.forgives,
                _ => Duration::ZERO,
            };
            let until = *until.get_or_insert_with(|| Instant::now() + time);
            let wait = backoff.wait(jitter.roll(), failure.retry_after());
            if Instant::now() + wait > until {
                return Err(failure);
            }
            tokio::time::sleep(wait).await;
        }
    }
}
