//! Claims: one create-only Lease per slot, owned by the Node.
//!
//! The creation of the Lease is the mutex, because the API server creates a name only once. No
//! claim is renewed or taken over. The Lease's owner is the Node object, so Kubernetes deletes the
//! Lease of a deleted Node. The caller chooses the names and their order. A node finds its claims
//! by the labels of its Node, or by a list from the server's cache with the Node's uid.
//! [`ClaimGuard`] watches a claim.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::core::params::{
    DeleteParams, GetParams, ListParams, PostParams, Preconditions, WatchParams,
};
use kube::core::request;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::list::{List, list};
use super::retry::{Retry, retry};
use super::watch::WatchStream;
use super::{Api, Call, ErrorKind, Failure, Jitter, MANAGER};

mod guard;
mod lease;

pub use guard::{ClaimGuard, ClaimState, WatchSettings};
#[cfg(feature = "reclaim")]
pub(super) use lease::holder_of;
use lease::{BriefLease, Lease};
pub use lease::{ClaimOwner, Holder};

/// The label of a Lease with the uid of the claiming Node. A uid always fits a label value, while a
/// name may be too long.
pub const NODE_LABEL: &str = "pinfold.io/node-uid";

/// The label of a Lease with the value [`MANAGER`].
pub(super) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// The outcome of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// This node now holds the slot.
    New,
    /// This node already held the slot.
    Ours,
    /// Another node holds the slot.
    Taken,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ClaimSettings {
    /// The number of names that are tried between two lists of claims.
    pub blind: usize,
    /// How long a list of claims counts as current.
    pub list_for: Duration,
    /// The number of Leases in a page.
    pub page: u32,
    /// The longest random pause between two tries.
    pub spread: Duration,
    /// The shortest and the longest wait after a retryable failure.
    pub backoff: (Duration, Duration),
    /// The number of retries after a retryable failure.
    pub tries: u32,
}

impl Default for ClaimSettings {
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
    owner: ClaimOwner,
    settings: ClaimSettings,
    jitter: Mutex<Jitter>,
    /// When the claims were last listed, and the slots that other nodes held then.
    taken: Mutex<Option<(Instant, Arc<HashSet<String>>)>>,
}

// === impl Claims ===

impl Claims {
    /// The claims of `owner`, as Leases in `namespace`. No request is sent.
    pub fn new(api: Api, namespace: &str, owner: ClaimOwner, settings: ClaimSettings) -> Self {
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

    pub fn owner(&self) -> &ClaimOwner {
        &self.owner
    }

    /// The names of the slots that this node holds.
    ///
    /// For a list by label without a resourceVersion, the server would read all Leases of the
    /// namespace from etcd. So the list comes from the server's cache, and because that may be
    /// stale, a separate read confirms each listed claim.
    ///
    /// # Errors
    /// Any [`Failure`]. The claims are then unknown, which does not mean that the node has none.
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

    /// The slots among `names` that this node holds, each read separately.
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

    /// The slots among `names` that other nodes hold, each read separately.
    ///
    /// # Errors
    /// Any [`Failure`].
    pub(super) async fn held_by_others(
        &self,
        names: impl IntoIterator<Item = String>,
    ) -> Result<BTreeSet<String>, Failure> {
        let mut theirs = BTreeSet::new();
        for name in names {
            let holder = self.holder(&name).await?;
            if holder.is_some_and(|holder| holder.node != self.owner.node) {
                theirs.insert(name);
            }
        }
        Ok(theirs)
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

    /// Reads which slots other nodes hold, and remembers them for [`ClaimSettings::list_for`]. The
    /// list comes from the server's cache, which serves ten thousand nodes at once and has no
    /// pages. It may be stale, but a create request always gets the current state.
    ///
    /// Returns the slots that the list shows as this node's own.
    ///
    /// # Errors
    /// Any [`Failure`].
    pub async fn look_around(&self) -> Result<BTreeSet<String>, Failure> {
        let (mut taken, mut own) = (HashSet::new(), BTreeSet::new());
        let cached = ListParams::default().match_any();
        self.read(
            format!("{MANAGED_BY}={MANAGER}"),
            cached,
            |BriefLease { metadata }: BriefLease| {
                if metadata
                    .owners
                    .iter()
                    .any(|owner| owner.uid == self.owner.uid)
                {
                    own.insert(metadata.name);
                } else if !metadata.is_of_earlier(&self.owner) {
                    taken.insert(metadata.name);
                }
            },
        )
        .await?;
        *lock(&self.taken) = Some((Instant::now(), Arc::new(taken)));
        Ok(own)
    }

    /// Opens a watch of a claim, from the given resourceVersion.
    pub(super) async fn watch(
        &self,
        name: &str,
        version: &str,
        seconds: u32,
    ) -> Result<WatchStream, Failure> {
        let params = WatchParams {
            field_selector: Some(format!("metadata.name={name}")),
            timeout: Some(seconds),
            ..WatchParams::default()
        };
        WatchStream::open(&self.api, Call::WatchLease, &self.path, &params, version).await
    }

    /// Tries to claim a slot. The Lease gets `labels`, for people.
    ///
    /// # Errors
    /// Any [`Failure`]. After an uncertain failure, a second call tells whether the node holds the slot.
    pub async fn claim(
        &self,
        name: &str,
        labels: &BTreeMap<String, String>,
    ) -> Result<ClaimOutcome, Failure> {
        self.try_claim(name, labels, &AtomicBool::new(true)).await
    }

    /// Claims a free slot; `None` if all slots are taken.
    ///
    /// The first [`ClaimSettings::blind`] names are tried in the caller's order. If all of these
    /// slots are taken, many nodes compete for the same ones, so the remaining free names are tried
    /// in random order, with a new list of claims after every [`ClaimSettings::blind`] refusals,
    /// because an untried slot may have become free. No name is tried twice. Only the first try
    /// reads the holder of a refused slot: a node's own slot is the first name, and an earlier
    /// process of this node may have claimed it.
    ///
    /// # Errors
    /// A [`Failure`] that is not retryable, or that persists after [`ClaimSettings::tries`] retries.
    pub async fn claim_first<N: Into<String>>(
        &self,
        names: impl IntoIterator<Item = N>,
        labels: &BTreeMap<String, String>,
    ) -> Result<Option<String>, Failure> {
        let mut names = names.into_iter().map(Into::<String>::into);
        let blind = self.settings.blind.max(1);
        let known = self.recently_taken();
        let mut check_holder = true;
        // Slots that were taken in the last list; they may be free in the next one.
        let mut untried: Vec<String> = Vec::new();
        let mut tries = 0;
        while tries < blind {
            let Some(name) = names.next() else {
                return Ok(None);
            };
            if known.contains(&name) {
                untried.push(name);
                continue;
            }
            tries += 1;
            if self
                .try_for(&name, labels, std::mem::take(&mut check_holder))
                .await?
            {
                return Ok(Some(name));
            }
        }
        let rest: Vec<String> = names.collect();
        if rest.is_empty() {
            return Ok(None);
        }
        untried.extend(rest);
        loop {
            self.with_retries(|| self.look_around()).await?;
            let taken = self.recently_taken();
            let (mut later, mut free): (Vec<String>, Vec<String>) =
                untried.into_iter().partition(|name| taken.contains(name));
            for _ in 0..blind.min(free.len()) {
                let index = lock(&self.jitter).below(free.len());
                let name = free.swap_remove(index);
                if self
                    .try_for(&name, labels, std::mem::take(&mut check_holder))
                    .await?
                {
                    return Ok(Some(name));
                }
            }
            if free.is_empty() {
                return Ok(None);
            }
            later.append(&mut free);
            untried = later;
        }
    }

    /// Tries to claim a slot, and pauses at random after a refusal. Returns whether this node holds
    /// it. `check_holder`: read the holder of a refused slot.
    async fn try_for(
        &self,
        name: &str,
        labels: &BTreeMap<String, String>,
        check_holder: bool,
    ) -> Result<bool, Failure> {
        let check_holder = AtomicBool::new(check_holder);
        match self
            .with_retries(|| self.try_claim(name, labels, &check_holder))
            .await?
        {
            ClaimOutcome::New | ClaimOutcome::Ours => Ok(true),
            ClaimOutcome::Taken => {
                if let Some((_, taken)) = lock(&self.taken).as_mut() {
                    Arc::make_mut(taken).insert(name.to_owned());
                }
                let pause = lock(&self.jitter).spread(self.settings.spread);
                tokio::time::sleep(pause).await;
                Ok(false)
            }
        }
    }

    /// Deletes this node's claim of a slot. Returns whether a claim was deleted.
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
        self.delete(name, holder.lease).await
    }

    /// Deletes the Lease with this name and uid. Returns whether a Lease was deleted.
    ///
    /// # Errors
    /// Any [`Failure`].
    pub(super) async fn delete(&self, name: &str, uid: String) -> Result<bool, Failure> {
        // The precondition protects a new Lease of the same name, which may belong to another node.
        let preconditions = Preconditions {
            uid: Some(uid),
            resource_version: None,
        };
        let params = DeleteParams::default().preconditions(preconditions);
        let request = request::Request::new(&*self.path)
            .delete(name, &params)
            .map_err(|error| self.api.unbuilt(error))?;
        match self.api.ask::<Value>(Call::DeleteLease, request).await {
            Ok(_) => Ok(true),
            Err(failure) if matches!(failure.kind(), ErrorKind::NotFound | ErrorKind::Conflict) => {
                Ok(false)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Like [`Claims::claim`], but reads the holder of a refused slot only if `check_holder` is
    /// set, because [`Claims::mine`] usually names this node's slots already. After a lost answer
    /// the claim may exist, so the flag is set for the further tries.
    async fn try_claim(
        &self,
        name: &str,
        labels: &BTreeMap<String, String>,
        check_holder: &AtomicBool,
    ) -> Result<ClaimOutcome, Failure> {
        let Err(failure) = self.create(name, labels).await else {
            return Ok(ClaimOutcome::New);
        };
        let refused = is_taken(&failure);
        if refused && !check_holder.load(Ordering::Relaxed) {
            return Ok(ClaimOutcome::Taken);
        }
        if !refused && !failure.is_uncertain() {
            return Err(failure);
        }
        // The server may have created the claim although the answer was lost, and it would then
        // refuse every later try.
        check_holder.store(true, Ordering::Relaxed);
        match self.holder(name).await? {
            Some(holder) if holder.uid == self.owner.uid => Ok(ClaimOutcome::Ours),
            Some(holder) if holder.node == self.owner.node => {
                self.replace_earlier(name, labels, holder).await
            }
            None if !refused => Err(failure),
            _ => Ok(ClaimOutcome::Taken),
        }
    }

    /// Replaces the claim of an earlier Node with this node's name. Kubernetes deletes such a claim, but only after some time,
    /// and the node would meanwhile lose its slot to another node.
    async fn replace_earlier(
        &self,
        name: &str,
        labels: &BTreeMap<String, String>,
        holder: Holder,
    ) -> Result<ClaimOutcome, Failure> {
        // This Node may itself be the earlier one, if it was replaced since the last read.
        let node = super::own_node::read(&self.api, &self.owner.node).await?;
        if node.is_none_or(|node| node.uid != self.owner.uid) {
            return Ok(ClaimOutcome::Taken);
        }
        self.delete(name, holder.lease).await?;
        match self.create(name, labels).await {
            Ok(()) => Ok(ClaimOutcome::New),
            Err(failure) if is_taken(&failure) => Ok(ClaimOutcome::Taken),
            Err(failure) => Err(failure),
        }
    }

    /// Creates the Lease of a slot.
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
        let body = serde_json::to_vec(&lease).map_err(|error| self.api.unbuilt(error))?;
        let request = request::Request::new(&*self.path)
            .create(&params, body)
            .map_err(|error| self.api.unbuilt(error))?;
        self.api
            .ask::<Value>(Call::CreateLease, request)
            .await
            .map(|_| ())
    }

    /// The holder of a slot; `None` if the slot is free.
    async fn holder(&self, name: &str) -> Result<Option<Holder>, Failure> {
        let request = request::Request::new(&*self.path)
            .get(name, &GetParams::default())
            .map_err(|error| self.api.unbuilt(error))?;
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

    /// Reads the Leases that match a label selector, page by page.
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

    /// Sends a request, with retries after retryable failures.
    async fn with_retries<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        request: impl FnMut() -> F,
    ) -> Result<T, Failure> {
        let policy = Retry {
            backoff: self.settings.backoff,
            retries: self.settings.tries,
        };
        retry(policy, request, || {}).await
    }

    /// The slots that other nodes hold; empty if the last list is older than
    /// [`ClaimSettings::list_for`].
    fn recently_taken(&self) -> Arc<HashSet<String>> {
        let taken = lock(&self.taken);
        let current = taken
            .as_ref()
            .filter(|(at, _)| at.elapsed() < self.settings.list_for);
        current
            .map(|(_, taken)| Arc::clone(taken))
            .unwrap_or_default()
    }
}

/// Locks a mutex. Poisoning is ignored, since a panic can't leave the value inconsistent.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the server refused a create because the name exists.
fn is_taken(failure: &Failure) -> bool {
    failure
        .status()
        .is_some_and(kube::core::Status::is_already_exists)
}
