//! [`PodUid`] and [`ApiUid`]: the two uids of a pod, which differ only for static pods and mirror
//! pods.

use std::fmt;

macro_rules! uid {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<String> for $name {
            fn from(uid: String) -> Self {
                Self(uid)
            }
        }

        impl From<&str> for $name {
            fn from(uid: &str) -> Self {
                Self(uid.to_owned())
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

uid! {
    /// The uid in the name of the pod's cgroup. It comes from the Pod object, or for a static pod
    /// from the manifest.
    PodUid
}

uid! {
    /// `metadata.uid` of an object at the API server.
    ApiUid
}

/// The static pod that a mirror pod names. A pod's author can write both fields, so neither is
/// evidence alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    /// The uid of the static pod: `kubernetes.io/config.hash`, which `kubernetes.io/config.mirror` repeats.
    pub uid: PodUid,
    pub node: ApiUid,
}
