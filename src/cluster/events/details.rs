//! [`EventDetails`]: what the recorder and its book of written Events share.

/// The content of an Event on a pod, a Node or a Job. On a Node or a Job, `pod` and `uid` are its
/// name and uid.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EventDetails {
    pub namespace: String,
    pub pod: String,
    /// The uid at the API server.
    pub uid: String,
    /// Whether the Event has the type `Warning`: a person should act.
    pub warning: bool,
    /// The action in a word, for example `Pin`.
    pub action: &'static str,
    /// The result in a word, for example `Pinned`, `Refused` or `ValueKept`.
    pub reason: &'static str,
    /// A sentence with details: the CPUs, or the cause.
    pub note: String,
}
