//! [`ContainerCpus`]: what the annotation [`CONTAINER_CPUS_ANNOTATION`] says about single containers of a pod.

use std::collections::BTreeMap;

use super::{CONTAINER_CPUS_ANNOTATION, Pod};

/// What the pod's owner wants for single containers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerCpus {
    wishes: BTreeMap<Box<str>, ContainerWish>,
    /// Why the annotation can't be read. Nothing of it holds then.
    error: Option<String>,
}

/// What the pod's owner wants for a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerWish {
    /// CPUs of its own, whatever the pod's other containers ask for.
    Exclusive,
    /// The shared CPUs.
    Shared,
}

// === impl ContainerCpus ===

impl ContainerCpus {
    /// Reads the annotation of a pod: `trainer=exclusive,logger=shared`. A container named twice with different words is a
    /// mistake, because nobody can tell which one counts.
    pub fn of(pod: &Pod) -> Self {
        let Some(text) = pod.annotations.get(CONTAINER_CPUS_ANNOTATION) else {
            return Self::default();
        };
        let mut wishes = BTreeMap::new();
        for entry in text.split(',').map(str::trim) {
            let wish = entry.split_once('=').and_then(|(name, word)| {
                let name = Some(name.trim()).filter(|name| !name.is_empty());
                Some((name?, ContainerWish::of(word.trim())?))
            });
            let Some((name, wish)) = wish else {
                return Self::unreadable(format!(
                    "annotation {CONTAINER_CPUS_ANNOTATION} has {entry:?}: write CONTAINER=exclusive or CONTAINER=shared, with \
                     commas between them"
                ));
            };
            if wishes
                .insert(name.into(), wish)
                .is_some_and(|earlier| earlier != wish)
            {
                return Self::unreadable(format!(
                    "annotation {CONTAINER_CPUS_ANNOTATION} names container {name:?} with both words: write one of them"
                ));
            }
        }
        Self {
            wishes,
            error: None,
        }
    }

    fn unreadable(error: String) -> Self {
        Self {
            wishes: BTreeMap::new(),
            error: Some(error),
        }
    }

    /// Why the annotation can't be read.
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// What the pod's owner wants for this container; `None` if the annotation does not name it.
    pub fn wish(&self, container: &str) -> Option<ContainerWish> {
        self.wishes.get(container).copied()
    }

    /// All containers that the annotation names.
    pub(super) fn named(&self) -> impl Iterator<Item = &str> {
        self.wishes.keys().map(AsRef::as_ref)
    }

    /// The containers that shall have CPUs of their own.
    pub fn exclusive(&self) -> impl Iterator<Item = &str> {
        self.wishes
            .iter()
            .filter(|(_, wish)| **wish == ContainerWish::Exclusive)
            .map(|(name, _)| name.as_ref())
    }
}

// === impl ContainerWish ===

impl ContainerWish {
    fn of(word: &str) -> Option<Self> {
        match word {
            "exclusive" => Some(Self::Exclusive),
            "shared" => Some(Self::Shared),
            _ => None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn of(text: &str) -> ContainerCpus {
        let annotations = BTreeMap::from([(CONTAINER_CPUS_ANNOTATION.to_owned(), text.to_owned())]);
        ContainerCpus::of(&Pod {
            annotations: annotations.into(),
            ..Pod::default()
        })
    }

    #[test]
    fn each_container_has_its_word() {
        let read = of(" trainer=exclusive , logger = shared,trainer=exclusive");
        assert_eq!(read.error(), None);
        assert_eq!(read.wish("trainer"), Some(ContainerWish::Exclusive));
        assert_eq!(read.wish("logger"), Some(ContainerWish::Shared));
        assert_eq!(read.wish("proxy"), None);
        assert!(read.exclusive().eq(["trainer"]));
        assert_eq!(ContainerCpus::of(&Pod::default()), ContainerCpus::default());
    }

    #[test]
    fn mistakes_are_named_and_nothing_else_of_the_annotation_holds() {
        for (text, names) in [
            ("", "\"\""),
            ("trainer", "\"trainer\""),
            ("trainer=exclusive,", "\"\""),
            ("trainer=exclusive,logger=none", "\"logger=none\""),
            ("trainer=required", "\"trainer=required\""),
            ("=exclusive", "\"=exclusive\""),
            ("trainer=exclusive=shared", "\"trainer=exclusive=shared\""),
            ("a=exclusive,a=shared", "\"a\" with both words"),
        ] {
            let read = of(text);
            assert!(read.error().unwrap().contains(names), "{text}: {read:?}");
            assert_eq!(read.exclusive().count(), 0, "{text}");
            assert_eq!(read.wish("trainer"), None, "{text}");
        }
    }
}
