//! [`EventDetails`]: what the recorder and its book of written Events share.

/// The content of an Event on a pod or Node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EventDetails {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's uid at the API server.
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
