//! Claims: one create-only Lease per slot, owned by the Node.
//!
//! That a name can be created only once is the mutex; nothing is ever renewed or taken over. The Lease's owner is the Node
//! object, so Kubernetes frees the slot of a node that is gone. Which names there are, and in which order to try them, comes
//! from the caller. A node finds its own claims in two ways: its labels name them, and the server's cache lists them by the
//! node's uid. [`Guard`] watches one of them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::core::params::{
    DeleteParams, GetParams, ListParams, PostParams, Preconditions, WatchParams,
};
use kube::core::request;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::call::Lines;
use super::list::{List, list};
use super::retry::{Retry, retry};
use super::{Api, Call, ErrorKind, Failure, Jitter, MANAGER};
use crate::text::part;

mod guard;

pub use guard::{Guard, Standing, WatchSettings};

/// The label that names the claiming Node. Its uid always fits a label, its name may not.
pub const NODE_LABEL: &str = "pinfold.io/node-uid";

const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// The node that owns the claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The Node's name.
    pub node: String,
    /// The Node's uid.
    pub uid: String,
}

/// Who holds a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The holding Node's name.
    pub node: String,
    /// Its uid.
    pub uid: String,
    /// The Lease's own uid.
    pub lease: String,
}

/// What became of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claimed {
    /// It is ours since now.
    New,
    /// It was ours already.
    Ours,
    /// A different node holds the slot.
    Taken,
}

/// How claims are made.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// How many names are tried between two looks at the others' claims.
    pub blind: usize,
    /// How long a list of claims is believed.
    pub list_for: Duration,
    /// Leases of a page.
    pub page: u32,
    /// The longest random pause between two tries.
    pub spread: Duration,
    /// The shortest and the longest wait after a failure that passes.
    pub backoff: (Duration, Duration),
    /// How often a failure that passes is tried again.
    pub tries: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            blind: 3,
            list_for: Duration::from_secs(60),
            page: 500,
            spread: Duration::from_millis(500),
            backoff: (Duration::from_millis(500), Duration::from_secs(30)),
            tries: 8,
        }
    }
}

/// The claims of one node.
#[derive(Debug)]
pub struct Claims {
    api: Api,
    path: String,
    owner: Owner,
    settings: Settings,
    jitter: Mutex<Jitter>,
    /// Slots that others hold, as last listed, and when.
    taken: Mutex<Option<(Instant, Arc<HashSet<String>>)>>,
}

/// The part of a Lease that says whether a slot is free: many are read, and often.
#[derive(Deserialize)]
struct Brief {
    metadata: BriefMetadata,
}

#[derive(Deserialize)]
struct BriefMetadata {
    name: String,
    #[serde(rename = "ownerReferences", default)]
    owners: Vec<BriefOwner>,
}

#[derive(Deserialize)]
struct BriefOwner {
    uid: String,
}

part! {
    /// The part of a Lease that we read.
    struct Lease: "a Lease" {
        metadata: Metadata = "metadata",
        spec: Spec = "spec",
    }
}

part! {
    struct Metadata: "an object's metadata" {
        name: String = "name",
        uid: String = "uid",
        owners: Vec<OwnerReference> = "ownerReferences",
    }
}

part! {
    struct OwnerReference: "an owner" {
        kind: String = "kind",
        name: String = "name",
        uid: String = "uid",
    }
}

part! {
    struct Spec: "a Lease's spec" {
        holder: String = "holderIdentity",
    }
}

// === impl Claims ===

impl Claims {
    /// Claims of `owner`, as Leases in `namespace`.
    pub fn new(api: Api, namespace: &str, owner: Owner, settings: Settings) -> Self {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
        Self {
            api,
            path,
            owner,
            settings,
            jitter: Mutex::default(),
            taken: Mutex::new(None),
        }
    }

    /// Whose they are.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The names of the slots that this node holds.
    ///
    /// A list by label that names no version makes the server read all Leases of the namespace from etcd. So the list comes from
    /// the server's cache, which may be a moment old, and each claim that it shows is read by itself.
    ///
    /// # Errors
    /// Any [`Failure`]; nothing is known then, which is not the same as no claims.
    pub async fn mine(&self) -> Result<BTreeSet<String>, Failure> {
        let mut found = BTreeSet::new();
        let selector = format!("{NODE_LABEL}={}", self.owner.uid);
        let cached = ListParams::default().match_any();
        self.read(selector, cached, |lease: Lease| {
            found.extend(lease.held().0);
        })
        .await?;
        self.confirm(found).await
    }

    /// Those of these slots that this node holds; each is read by itself.
    ///
    /// # Errors
    /// Any [`Failure`].
    pub async fn confirm(
        &self,
        names: impl IntoIterator<Item = String>,
    ) -> Result<BTreeSet<String>, Failure> {
        let mut mine = BTreeSet::new();
        for name in names {
            if self
                .holder(&name)
                .await?
                .is_some_and(|holder| holder.uid == self.owner.uid)
            {
                mine.insert(name);
            }
        }
        Ok(mine)
    }

    /// All claims in the namespace, by slot.
    ///
    /// # Errors
    /// Any [`Failure`].
    pub async fn list(&self) -> Result<BTreeMap<String, Holder>, Failure> {
        let mut all = BTreeMap::new();
        let first = ListParams {
            limit: Some(self.settings.page),
            ..ListParams::default()
        };
        self.read(format!("{MANAGED_BY}={MANAGER}"), first, |lease: Lease| {
            let (name, holder) = lease.held();
            all.extend(name.map(|name| (name, holder)));
        })
        .await?;
        Ok(all)
    }

    /// Reads which slots others hold, for the tries of the next while: from the server's cache, which serves ten thousand
    /// nodes at once and knows no pages. It may be a moment old; whoever creates a claim is told the truth.
    ///
    /// Returns the slots that are shown as this node's own.
    ///
    /// # Errors
    /// Any [`Failure`].
    pub async fn look_around(&self) -> Result<BTreeSet<String>, Failure> {
        let (mut taken, mut own) = (HashSet::new(), BTreeSet::new());
        let cached = ListParams::default().match_any();
        self.read(
            format!("{MANAGED_BY}={MANAGER}"),
            cached,
            |Brief { metadata }: Brief| {
                if metadata
                    .owners
                    .iter()
                    .any(|owner| owner.uid == self.owner.uid)
                {
                    own.insert(metadata.name)
                } else {
                    taken.insert(metadata.name)
                };
            },
        )
        .await?;
        *lock(&self.taken) = Some((Instant::now(), Arc::new(taken)));
        Ok(own)
    }

    /// Opens a watch of one claim, from a version on.
    pub(super) async fn watch(
        &self,
        name: &str,
        version: &str,
        seconds: u32,
    ) -> Result<Lines, Failure> {
        let params = WatchParams {
            field_selector: Some(format!("metadata.name={name}")),
            timeout: Some(seconds),
            ..WatchParams::default()
        };
        let request = request::Request::new(&*self.path)
            .watch(&params, version)
            .map_err(Failure::unbuilt)?;
        self.api.open(Call::WatchLease, request).await
    }

    /// Tries to claim one slot; `labels` are put on the Lease, for people.
    ///
    /// # Errors
    /// Any [`Failure`]. Where it is uncertain whether the claim was made, claiming again says so.
    pub async fn claim(
        &self,
        name: &str,
        labels: &BTreeMap<String, String>,
    ) -> Result<Claimed, Failure> {
        self.claim_quickly(name, labels, &AtomicBool::new(true))
            .await
    }

    /// Claims a slot that is free; `None` where all are taken.
    ///
    /// The first few are tried in the order in which the names come, so that the caller decides who begins where. If
    /// those are taken, many nodes want the same: from then on all claims are listed, and the free names are tried in random
    /// order, with a new list after every few refusals. Who holds a slot that is refused is only asked for the first of them:
    /// a node's own slot comes first, and a claim of its own may be one that nobody has told it of.
    ///
    /// # Errors
    /// A [`Failure`] that does not pass, or did not within [`Settings::tries`].
    pub async fn claim_first<N: Into<String>>(
        &self,
        names: impl IntoIterator<Item = N>,
        labels: &BTreeMap<String, String>,
    ) -> Result<Option<String>, Failure> {
        let mut names = names.into_iter().map(Into::into);
        let few = self.settings.blind.max(1);
        let known = self.taken_of_late();
        let mut ask = true;
        for name in names
            .by_ref()
            .filter(|name| !known.contains(name))
            .take(few)
        {
            if self
                .try_for(&name, labels, std::mem::take(&mut ask))
                .await?
            {
                return Ok(Some(name));
            }
        }
        let mut rest: Vec<String> = names.collect();
        while !rest.is_empty() {
            self.patiently(|| self.look_around()).await?;
            let taken = self.taken_of_late();
            rest.retain(|name| !taken.contains(name));
            for _ in 0..few.min(rest.len()) {
                let index = lock(&self.jitter).below(rest.len());
                let name = rest.swap_remove(index);
                if self
                    .try_for(&name, labels, std::mem::take(&mut ask))
                    .await?
                {
                    return Ok(Some(name));
                }
            }
        }
        Ok(None)
    }

    /// One try for a slot, and a random pause if it was refused; whether it is ours. `ask`: who holds it, if it is refused.
    async fn try_for(
        &self,
        name: &str,
        labels: &BTreeMap<String, String>,
        ask: bool,
    ) -> Result<bool, Failure> {
        let doubt = AtomicBool::new(ask);
        match self
            .patiently(|| self.claim_quickly(name, labels, &doubt))
            .await?
        {
            Claimed::New | Claimed::Ours => Ok(true),
            Claimed::Taken => {
                if let Some((_, taken)) = lock(&self.taken).as_mut() {
                    Arc::make_mut(taken).insert(name.to_owned());
                }
                let pause = lock(&self.jitter).spread(self.settings.spread);
                tokio::time::sleep(pause).await;
                Ok(false)
            }
        }
    }

    /// Gives a slot back if it is ours; whether it was.
    ///
    /// # Errors
    /// Any [`Failure`].
    pub async fn release(&self, name: &str) -> Result<bool, Failure> {
        let Some(holder) = self.holder(name).await? else {
            return Ok(false);
        };
        if holder.uid != self.owner.uid {
            return Ok(false);
        }
        // Exactly the Lease that was looked at: a name may have changed hands since.
        let preconditions = Preconditions {
            uid: Some(holder.lease),
            resource_version: None,
        };
        let params = DeleteParams::default().preconditions(preconditions);
        let request = request::Request::new(&*self.path)
            .delete(name, &params)
            .map_err(Failure::unbuilt)?;
        match self.api.ask::<Value>(Call::DeleteLease, request).await {
            Ok(_) => Ok(true),
            Err(failure) if matches!(failure.kind(), ErrorKind::NotFound | ErrorKind::Conflict) => {
                Ok(false)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Like [`Claims::claim`], but who holds a slot that was refused is only asked where there is `doubt`: that it is ours is
    /// known from [`Claims::mine`], except after an answer that was lost. Then there is doubt from there on.
    async fn claim_quickly(
        &self,
        name: &str,
        labels: &BTreeMap<String, String>,
        doubt: &AtomicBool,
    ) -> Result<Claimed, Failure> {
        let Err(failure) = self.create(name, labels).await else {
            return Ok(Claimed::New);
        };
        let refused = is_taken(&failure);
        if refused && !doubt.load(Ordering::Relaxed) {
            return Ok(Claimed::Taken);
        }
        if !refused && !failure.is_uncertain() {
            return Err(failure);
        }
        // Perhaps it was made and only the answer was lost: every later try would be refused by our own claim.
        doubt.store(true, Ordering::Relaxed);
        match self.holder(name).await? {
            Some(holder) if holder.uid == self.owner.uid => Ok(Claimed::Ours),
            None if !refused => Err(failure),
            _ => Ok(Claimed::Taken),
        }
    }

    async fn create(&self, name: &str, labels: &BTreeMap<String, String>) -> Result<(), Failure> {
        let mut all = labels.clone();
        all.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
        all.insert(NODE_LABEL.to_owned(), self.owner.uid.clone());
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": name,
                "labels": all,
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Node", "name": self.owner.node, "uid": self.owner.uid},
                ],
            },
            "spec": {"holderIdentity": self.owner.node},
        });
        let params = PostParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PostParams::default()
        };
        let body = serde_json::to_vec(&lease).map_err(Failure::unbuilt)?;
        let request = request::Request::new(&*self.path)
            .create(&params, body)
            .map_err(Failure::unbuilt)?;
        self.api
            .ask::<Value>(Call::CreateLease, request)
            .await
            .map(|_| ())
    }

    /// Who holds a slot; `None` where nobody does.
    async fn holder(&self, name: &str) -> Result<Option<Holder>, Failure> {
        let request = request::Request::new(&*self.path)
            .get(name, &GetParams::default())
            .map_err(Failure::unbuilt)?;
        match self.api.ask::<Lease>(Call::GetLease, request).await {
            Ok(lease) => match lease.held() {
                (Some(found), holder) if found == name => Ok(Some(holder)),
                (found, _) => Err(Failure::InvalidResponse(format!(
                    "Lease {found:?} instead of {name}"
                ))),
            },
            Err(failure) if failure.kind() == ErrorKind::NotFound => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Reads the Leases with certain labels, page by page.
    async fn read<T: DeserializeOwned>(
        &self,
        selector: String,
        first: ListParams,
        mut take: impl FnMut(T),
    ) -> Result<(), Failure> {
        let wanted =
            List::new(Call::ListLeases, &self.path, "LeaseList").with(first.labels(&selector));
        list(&self.api, wanted, |lease| {
            take(serde_json::from_str(lease.get()).map_err(Failure::invalid)?);
            Ok(())
        })
        .await?;
        Ok(())
    }

    /// Tries again what fails in a way that passes.
    async fn patiently<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        ask: impl FnMut() -> F,
    ) -> Result<T, Failure> {
        let policy = Retry {
            backoff: self.settings.backoff,
            retries: self.settings.tries,
        };
        retry(policy, ask, || {}).await
    }

    /// What others hold, if it was listed of late.
    fn taken_of_late(&self) -> Arc<HashSet<String>> {
        let taken = lock(&self.taken);
        let fresh = taken
            .as_ref()
            .filter(|(at, _)| at.elapsed() < self.settings.list_for);
        fresh
            .map(|(_, taken)| Arc::clone(taken))
            .unwrap_or_default()
    }
}

/// A mutex whose holder can't have broken what it guards.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_taken(failure: &Failure) -> bool {
    failure
        .status()
        .is_some_and(kube::core::Status::is_already_exists)
}

// === impl Lease ===

impl Lease {
    /// Its name, and the Node that it belongs to: its owner, else the name in it.
    fn held(self) -> (Option<String>, Holder) {
        let metadata = self.metadata.unwrap_or_default();
        let mut owners = metadata.owners.unwrap_or_default().into_iter();
        let owner = owners.find(|owner| owner.kind.as_deref() == Some("Node"));
        let (node, uid) = match owner {
            Some(owner) => (owner.name, owner.uid),
            None => (self.spec.and_then(|spec| spec.holder), None),
        };
        let holder = Holder {
            node: node.unwrap_or_default(),
            uid: uid.unwrap_or_default(),
            lease: metadata.uid.unwrap_or_default(),
        };
        (metadata.name, holder)
    }
}
