//! [`list`]: reads all objects of a kind, page by page. The caller decodes each object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::core::params::ListParams;
use kube::core::request;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Api, Call, Failure};

/// The `kind` of a list with the metadata of objects.
const METADATA_LIST: &str = "PartialObjectMetadataList";

/// The list to read.
#[derive(Debug, Clone)]
pub(super) struct List<'a> {
    /// The name under which the requests are counted.
    pub(super) call: Call,
    /// The path of the collection.
    pub(super) path: &'a str,
    /// The `kind` of an answer, for example `LeaseList`.
    ///
    /// A proxy may answer with an unrelated page, and an empty answer must never mean "no objects".
    pub(super) kind: &'a str,
    /// Selectors, page size and version of the first page.
    pub(super) params: ListParams,
    /// The number of objects after which the list ends early.
    pub(super) limit: usize,
    /// Whether the server sends only the metadata of each object.
    pub(super) metadata_only: bool,
}

/// One page of a list. The objects stay text, so that memory holds only one page and the caller's
/// small structs.
#[derive(Deserialize)]
struct ListPage {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default)]
    items: Option<Vec<Box<RawValue>>>,
}

// === impl ListPage ===

impl ListPage {
    /// The objects and the metadata of a list of this kind.
    fn of(self, kind: &str) -> Result<(Vec<Box<RawValue>>, ListMeta), Failure> {
        let found = self.kind;
        if found != kind {
            return Err(Failure::InvalidResponse(format!(
                "a {found} instead of a {kind}"
            )));
        }
        let items = self
            .items
            .ok_or_else(|| Failure::InvalidResponse(format!("a {kind} without items")))?;
        Ok((items, self.metadata))
    }
}

// === impl List ===

impl<'a> List<'a> {
    /// A list of the collection `path`, without a selector.
    pub(super) fn new(call: Call, path: &'a str, kind: &'a str) -> Self {
        Self {
            call,
            path,
            kind,
            params: ListParams::default(),
            limit: usize::MAX,
            metadata_only: false,
        }
    }

    /// Requests only the metadata of each object.
    pub(super) fn of_metadata(self) -> Self {
        Self {
            kind: METADATA_LIST,
            metadata_only: true,
            ..self
        }
    }

    /// Replaces the parameters of the first page.
    pub(super) fn with(self, params: ListParams) -> Self {
        Self { params, ..self }
    }
}

/// Reads all pages and passes each object to `take`. Returns the list's resourceVersion, or an
/// empty string if the server sends none.
///
/// # Errors
/// Any [`Failure`] of a request, or of `take`.
pub(super) async fn list(
    api: &Api,
    wanted: List<'_>,
    mut take: impl FnMut(Box<RawValue>) -> Result<(), Failure>,
) -> Result<String, Failure> {
    let mut params = wanted.params;
    let mut count = 0;
    loop {
        let collection = request::Request::new(wanted.path);
        let request = if wanted.metadata_only {
            collection.list_metadata(&params)
        } else {
            collection.list(&params)
        };
        let request = request.map_err(|error| api.unbuilt(error))?;
        let page: ListPage = api.ask(wanted.call, request).await?;
        // The client has counted the request as a success, so a page of the wrong kind is counted
        // as a failure here.
        let (items, metadata) = page
            .of(wanted.kind)
            .inspect_err(|failure| api.counters().failed(failure.kind()))?;
        count += items.len();
        items.into_iter().try_for_each(&mut take)?;
        params.continue_token = metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() || count >= wanted.limit {
            return Ok(metadata.resource_version.unwrap_or_default());
        }
        // The token of a page carries the version of the first page.
        (params.resource_version, params.version_match) = (None, None);
    }
}
