//! [`Election`]: of several processes, only the holder of a Lease works.
//!
//! A leader renews the Lease. A candidate takes the Lease over after the record stayed unchanged for the duration in the
//! record. The candidate measures the time with its own monotonic clock, so wrong clocks do no harm. A leader without a
//! successful renewal stops the work before a candidate may take over: [`ElectionSettings::deadline`] is shorter than
//! [`ElectionSettings::duration`]. The deadline starts with the request, because the time of a late answer says nothing about the
//! time of the write.
//!
//! A process that ends hands the Lease back, also if the end comes while a request to take the Lease is in flight. The process
//! waits up to two seconds for the answer. After a later answer, the Lease stays held for [`ElectionSettings::duration`].
//!
//! A process that the kernel or a hypervisor suspends can't stop its work in time. After the suspension, the process drops the
//! work, but a request may already be in flight. A person may also delete the Lease. The work must therefore stay correct
//! beside a second worker: the deletes of the reclaimer have preconditions, and each status follows from the whole cluster.
//!
//! The rules are the rules of client-go. The crate `kube-leader-election` takes kube's own client, so its requests would have
//! neither the deadline nor the counters of [`Api`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::core::params::{GetParams, PostParams};
use kube::core::request;
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Api, Call, ErrorKind, Failure, Jitter, MANAGER};

/// The age of the last try after which the task counts as stuck. A try ends within [`ElectionSettings::deadline`].
const STUCK: Duration = Duration::from_secs(60);

/// The longest time for the try in flight and for handing the Lease back, when the process ends.
const END: Duration = Duration::from_secs(2);

/// The number of writes that hand the Lease back, if the Lease changes before each write.
const RELEASES: u32 = 3;

/// The times of an election.
#[derive(Debug, Clone, PartialEq)]
pub struct ElectionSettings {
    /// The time after which a candidate may take over an unchanged Lease, in whole seconds.
    pub duration: Duration,
    /// The time after which a leader without a successful renewal stops the work, and the longest time of a try.
    pub deadline: Duration,
    /// The pause between two tries.
    pub pause: Duration,
}

impl Default for ElectionSettings {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            deadline: Duration::from_secs(10),
            pause: Duration::from_secs(3),
        }
    }
}

/// A candidate for the leadership.
#[derive(Debug)]
pub struct Election {
    api: Api,
    /// The path of the Leases in the namespace.
    path: String,
    /// The name of the Lease.
    name: String,
    /// The name of this candidate, as written into the Lease.
    identity: String,
    settings: ElectionSettings,
    standing: Arc<CandidateState>,
}

/// The candidate's standing, for metrics and probes.
#[derive(Debug)]
pub struct CandidateState {
    leads: AtomicBool,
    /// The end of the last try.
    tried: Mutex<Instant>,
    /// Why the last try failed; `None` after a try without a failure.
    failure: Mutex<Option<String>>,
}

/// The record of a Lease, as last seen by a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LeaseRecord {
    /// The holder; empty for a Lease without a holder.
    holder: String,
    /// The time of the last renewal by the holder's clock. Candidates compare the text only for equality.
    renewed: String,
    /// The time after which a candidate may take over the unchanged Lease.
    duration: Duration,
}

/// The memory between two tries.
#[derive(Debug, Default)]
struct ElectionMemory {
    /// The record, and the time since which the record is unchanged.
    last_record: Option<(LeaseRecord, Instant)>,
    /// The Lease as last written by this candidate; `None` if the next try must read the Lease.
    written: Option<Value>,
}

/// The result of a try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ElectionOutcome {
    /// This candidate holds the Lease.
    Leads,
    /// A different candidate holds the Lease.
    Follows,
    /// The Lease changed between the read and the write. The next try reads the Lease.
    Changed,
}

// === impl CandidateState ===

impl CandidateState {
    fn new() -> Self {
        Self {
            leads: AtomicBool::new(false),
            tried: Mutex::new(Instant::now()),
            failure: Mutex::new(Some("the Lease has not been read yet".to_owned())),
        }
    }

    /// Whether this process leads.
    pub fn leads(&self) -> bool {
        self.leads.load(Ordering::Relaxed)
    }

    /// Why the last try failed, or why no try has ended yet; `None` if the last try found a leader.
    pub fn problem(&self) -> Option<String> {
        self.failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Whether no try has ended for a minute, so that only a restart of the process helps.
    pub fn is_stuck(&self) -> bool {
        let tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        tried.elapsed() > STUCK
    }

    fn record(&self, outcome: &Result<ElectionOutcome, Failure>) {
        *self.tried.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        let failure = outcome.as_ref().err().map(ToString::to_string);
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }
}

// === impl Election ===

impl Election {
    /// Creates a candidate for the Lease with the given name. `identity` differs between all candidates.
    pub fn new(
        api: Api,
        namespace: &str,
        name: &str,
        identity: String,
        settings: ElectionSettings,
    ) -> Self {
        Self {
            api,
            path: format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"),
            name: name.to_owned(),
            identity,
            settings,
            standing: Arc::new(CandidateState::new()),
        }
    }

    /// The candidate's standing, for metrics and probes.
    pub fn standing(&self) -> Arc<CandidateState> {
        Arc::clone(&self.standing)
    }

    /// Runs `work` whenever this process leads, until `stop` or the end of `work`. The loss of the leadership drops the work. A
    /// regular end hands the Lease back, so that a second process takes over at once.
    pub async fn run(&self, stop: &CancellationToken, mut work: impl AsyncFnMut()) {
        let mut memory = ElectionMemory::default();
        while let Some(began) = self.acquire(&mut memory, stop).await {
            self.standing.leads.store(true, Ordering::Relaxed);
            tracing::info!("this process leads: Lease {}", self.name);
            // The order matters after a suspension of the process: the loss drops the work before the next step of the work.
            let has_ended = tokio::select! {
                biased;
                () = stop.cancelled() => true,
                () = self.renew(&mut memory, began) => false,
                () = work() => true,
            };
            self.standing.leads.store(false, Ordering::Relaxed);
            if has_ended {
                break;
            }
            tracing::warn!("this process no longer leads: Lease {}", self.name);
        }
        self.hand_back(&mut memory).await;
    }

    /// Tries until this candidate leads. Returns the start of the successful try, or `None` after `stop`.
    async fn acquire(
        &self,
        memory: &mut ElectionMemory,
        stop: &CancellationToken,
    ) -> Option<Instant> {
        let mut jitter = Jitter::default();
        let mut reported = None;
        while !stop.is_cancelled() {
            let began = Instant::now();
            match self.try_until_end(memory, stop).await? {
                Ok(ElectionOutcome::Leads) => return Some(began),
                Ok(ElectionOutcome::Follows | ElectionOutcome::Changed) => reported = None,
                Err(failure) => {
                    let words = failure.to_string();
                    if reported.as_ref() != Some(&words) {
                        tracing::warn!(
                            "Lease {} can't be used: {words}{}",
                            self.name,
                            advice(&failure)
                        );
                        reported = Some(words);
                    }
                }
            }
            let pause = self.settings.pause;
            tokio::select! {
                () = tokio::time::sleep(pause + jitter.spread(pause / 4)) => {}
                () = stop.cancelled() => {}
            }
        }
        None
    }

    /// Makes a try. After `stop`, the try in flight still has the time [`END`], because a dropped request may take the Lease
    /// later. The result is then `None`.
    async fn try_until_end(
        &self,
        memory: &mut ElectionMemory,
        stop: &CancellationToken,
    ) -> Option<Result<ElectionOutcome, Failure>> {
        let mut attempt = std::pin::pin!(self.try_within(self.settings.deadline, memory));
        tokio::select! {
            outcome = &mut attempt => Some(outcome),
            () = stop.cancelled() => {
                let _ = tokio::time::timeout(END, attempt).await;
                None
            }
        }
    }

    /// Renews the Lease until the leadership is lost. `renewed` is the start of the last successful try.
    async fn renew(&self, memory: &mut ElectionMemory, mut renewed: Instant) {
        let left = |since: Instant| self.settings.deadline.saturating_sub(since.elapsed());
        let mut reported = None;
        while !left(renewed).is_zero() {
            tokio::time::sleep(self.settings.pause.min(left(renewed))).await;
            let (began, limit) = (Instant::now(), left(renewed));
            if limit.is_zero() {
                return;
            }
            match self.try_within(limit, memory).await {
                Ok(ElectionOutcome::Leads) => (renewed, reported) = (began, None),
                Ok(ElectionOutcome::Follows) => return,
                Ok(ElectionOutcome::Changed) => {}
                Err(failure) => {
                    let words = failure.to_string();
                    if reported.as_ref() != Some(&words) {
                        tracing::warn!(
                            "Lease {} can't be renewed: {words}{}",
                            self.name,
                            advice(&failure)
                        );
                    }
                    reported = Some(words);
                }
            }
        }
    }

    /// Makes a try, and records the result. A try without an answer within `limit` has failed: the other candidates may have
    /// counted the duration of the Lease since a write whose answer came late. The next try reads the Lease.
    async fn try_within(
        &self,
        limit: Duration,
        memory: &mut ElectionMemory,
    ) -> Result<ElectionOutcome, Failure> {
        let outcome = tokio::time::timeout(limit, self.attempt(memory)).await;
        let outcome = outcome.unwrap_or(Err(Failure::Timeout(limit)));
        if outcome.is_err() {
            memory.written = None;
        }
        self.standing.record(&outcome);
        outcome
    }

    /// Reads the Lease if necessary, and takes or renews the Lease if possible.
    async fn attempt(&self, memory: &mut ElectionMemory) -> Result<ElectionOutcome, Failure> {
        let lease = match memory.written.take() {
            Some(lease) => lease,
            None => match self.read().await? {
                Some(lease) => lease,
                None => return self.create(memory).await,
            },
        };
        if !memory.may_take(&LeaseRecord::of(&lease), &self.identity, Instant::now()) {
            return Ok(ElectionOutcome::Follows);
        }
        let new = renewed(lease, &self.identity, self.settings.duration, &now());
        self.replace(new, memory).await
    }

    async fn read(&self) -> Result<Option<Value>, Failure> {
        let request = request::Request::new(&*self.path)
            .get(&self.name, &GetParams::default())
            .map_err(|error| self.api.unbuilt(error))?;
        match self.api.ask::<Value>(Call::GetLease, request).await {
            Ok(lease) => Ok(Some(lease)),
            Err(failure) if failure.kind() == ErrorKind::NotFound => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    async fn create(&self, memory: &mut ElectionMemory) -> Result<ElectionOutcome, Failure> {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name},
            "spec": {"leaseTransitions": 0},
        });
        let lease = renewed(lease, &self.identity, self.settings.duration, &now());
        let body = serde_json::to_vec(&lease).map_err(|error| self.api.unbuilt(error))?;
        let request = request::Request::new(&*self.path)
            .create(&params(), body)
            .map_err(|error| self.api.unbuilt(error))?;
        self.written(self.api.ask(Call::CreateLease, request).await, memory)
    }

    /// Replaces the Lease, unless the Lease changed since the read.
    async fn replace(
        &self,
        lease: Value,
        memory: &mut ElectionMemory,
    ) -> Result<ElectionOutcome, Failure> {
        let body = serde_json::to_vec(&lease).map_err(|error| self.api.unbuilt(error))?;
        let request = request::Request::new(&*self.path)
            .replace(&self.name, &params(), body)
            .map_err(|error| self.api.unbuilt(error))?;
        self.written(self.api.ask(Call::Other, request).await, memory)
    }

    /// The outcome of a write.
    fn written(
        &self,
        answer: Result<Value, Failure>,
        memory: &mut ElectionMemory,
    ) -> Result<ElectionOutcome, Failure> {
        match answer {
            Ok(lease) => {
                memory.last_record = Some((LeaseRecord::of(&lease), Instant::now()));
                memory.written = Some(lease);
                Ok(ElectionOutcome::Leads)
            }
            // A different candidate was faster, or the Lease was deleted.
            Err(failure) if matches!(failure.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => {
                tracing::debug!("Lease {} changed since the read: {failure}", self.name);
                Ok(ElectionOutcome::Changed)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Hands the Lease back if this candidate is the holder. Without an answer in time, a second process waits for the duration
    /// of the Lease.
    async fn hand_back(&self, memory: &mut ElectionMemory) {
        let handed_back = async {
            // A renewal in flight may change the Lease between the read and the write. The next read shows the renewal.
            for _ in 0..RELEASES {
                if self.release(memory).await? != ElectionOutcome::Changed {
                    break;
                }
            }
            Ok::<(), Failure>(())
        };
        let answer = tokio::time::timeout(END, handed_back).await;
        if let Err(failure) = answer.unwrap_or(Err(Failure::Timeout(END))) {
            tracing::warn!("this process may still hold Lease {}: {failure}", self.name);
        }
    }

    /// Removes this candidate from the Lease. [`ElectionOutcome::Follows`] means that this candidate is not the holder.
    async fn release(&self, memory: &mut ElectionMemory) -> Result<ElectionOutcome, Failure> {
        let lease = match memory.written.take() {
            Some(lease) => Some(lease),
            // The last try failed, or the end came during a renewal with an unknown result.
            None => self.read().await?,
        };
        let Some(mut lease) = lease.filter(|lease| LeaseRecord::of(lease).holder == self.identity)
        else {
            return Ok(ElectionOutcome::Follows);
        };
        if let Some(spec) = lease.get_mut("spec").and_then(Value::as_object_mut) {
            spec.shift_remove("holderIdentity");
            spec.insert("leaseDurationSeconds".to_owned(), json!(1));
        }
        self.replace(lease, memory).await
    }
}

// === impl LeaseRecord ===

impl LeaseRecord {
    fn of(lease: &Value) -> Self {
        let text = |key: &str| {
            let value = lease.pointer(&format!("/spec/{key}"));
            value.and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let seconds = lease
            .pointer("/spec/leaseDurationSeconds")
            .and_then(Value::as_u64);
        Self {
            holder: text("holderIdentity"),
            renewed: text("renewTime"),
            duration: Duration::from_secs(seconds.unwrap_or_default()),
        }
    }
}

// === impl ElectionMemory ===

impl ElectionMemory {
    /// Whether the candidate `identity` may write its name into the Lease with this record.
    fn may_take(&mut self, record: &LeaseRecord, identity: &str, now: Instant) -> bool {
        let since = match &self.last_record {
            Some((known, since)) if known == record => *since,
            _ => {
                self.last_record = Some((record.clone(), now));
                now
            }
        };
        record.holder.is_empty()
            || record.holder == identity
            || now.duration_since(since) > record.duration
    }
}

/// The Lease with the candidate as the holder. A Lease that is no JSON object stays as before, and the server refuses the
/// write.
fn renewed(lease: Value, identity: &str, duration: Duration, now: &Value) -> Value {
    let mut lease = match lease {
        Value::Object(fields) => fields,
        other => return other,
    };
    // A new Lease has no transition. A stored Lease has a resourceVersion.
    let is_stored = lease
        .get("metadata")
        .is_some_and(|metadata| metadata.get("resourceVersion").is_some());
    let mut spec = match lease.shift_remove("spec") {
        Some(Value::Object(spec)) => spec,
        _ => Map::new(),
    };
    let is_takeover = spec.get("holderIdentity").and_then(Value::as_str) != Some(identity);
    if is_takeover {
        let before = spec.get("leaseTransitions").and_then(Value::as_u64);
        let transitions = before.unwrap_or_default() + u64::from(is_stored);
        spec.insert("acquireTime".to_owned(), now.clone());
        spec.insert("leaseTransitions".to_owned(), json!(transitions));
    }
    let seconds = duration.as_secs().max(1);
    spec.insert("holderIdentity".to_owned(), json!(identity));
    spec.insert("leaseDurationSeconds".to_owned(), json!(seconds));
    spec.insert("renewTime".to_owned(), now.clone());
    lease.insert("spec".to_owned(), Value::Object(spec));
    Value::Object(lease)
}

/// The present time as in a Lease.
fn now() -> Value {
    serde_json::to_value(MicroTime(Timestamp::now())).unwrap_or_default()
}

fn params() -> PostParams {
    PostParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PostParams::default()
    }
}

/// The remedy for a refused request, as the end of a sentence.
fn advice(failure: &Failure) -> &'static str {
    match failure.kind() {
        ErrorKind::Forbidden => {
            "; allow the account to get, create and update leases in the namespace, as in deploy/components/reclaim"
        }
        ErrorKind::Unauthorized => "; check the account's token",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(holder: &str, renewed: &str) -> LeaseRecord {
        LeaseRecord {
            holder: holder.to_owned(),
            renewed: renewed.to_owned(),
            duration: Duration::from_secs(15),
        }
    }

    #[test]
    fn a_candidate_takes_a_lease_only_after_its_duration_without_a_renewal() {
        let (start, mut memory) = (Instant::now(), ElectionMemory::default());
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut try_at =
            |record: &LeaseRecord, seconds| memory.may_take(record, "b", after(seconds));
        assert!(!try_at(&record("a", "10:00"), 0));
        assert!(!try_at(&record("a", "10:00"), 15));
        // A renewal starts the wait anew, whatever the time in the record says.
        assert!(!try_at(&record("a", "09:00"), 16));
        assert!(!try_at(&record("a", "09:00"), 31));
        assert!(try_at(&record("a", "09:00"), 32));
        // The own Lease and a Lease without a holder need no wait.
        assert!(try_at(&record("b", "10:01"), 33));
        assert!(try_at(&record("", "10:02"), 34));
    }

    #[test]
    fn a_leader_stops_before_a_candidate_may_take_over() {
        let ElectionSettings {
            duration,
            deadline,
            pause,
        } = ElectionSettings::default();
        assert!(pause * 2 < deadline && deadline < duration);
    }

    #[test]
    fn a_takeover_counts_as_a_transition_and_a_renewal_does_not() {
        let now = json!("2026-11-25T10:00:00.000000Z");
        let duration = Duration::from_secs(15);
        let fresh = json!({"metadata": {"name": "l"}, "spec": {}});
        let first = renewed(fresh, "a", duration, &now);
        assert_eq!(first["spec"]["leaseTransitions"], 0);
        let mut stored = first.clone();
        stored["metadata"]["resourceVersion"] = json!("7");
        assert_eq!(renewed(stored.clone(), "a", duration, &now), stored);
        let second = renewed(stored, "b", duration, &now);
        assert_eq!(second["spec"]["leaseTransitions"], 1);
        assert_eq!(second["spec"]["holderIdentity"], "b");
        assert_eq!(second["spec"]["leaseDurationSeconds"], 15);
        assert_eq!(second["metadata"]["resourceVersion"], "7");
    }
}
