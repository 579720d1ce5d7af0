//! [`Tree`]: a document as the author wrote it, with the line of each value.

use std::fmt;

use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_saphyr::Spanned;

/// A value and the first line of its text; 0 for an unknown line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tree {
    pub(crate) line: u64,
    pub(crate) node: Kind,
}

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    /// Null, a boolean, a number or a text.
    Scalar(Value),
    List(Vec<Tree>),
    Map(Vec<(String, Tree)>),
}

/// A step of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Key(String),
    Index(usize),
}

/// Where in an object something is, like `spec.scenes[1].cases[0].totals.worker`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path(Vec<Step>);

// === impl Path ===

impl Path {
    /// This path with a key below.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        self.with(Step::Key(key.to_owned()))
    }

    /// This path with an index below.
    #[must_use]
    pub fn at(&self, index: usize) -> Self {
        self.with(Step::Index(index))
    }

    /// The path of the given keys.
    pub fn of(keys: &[&str]) -> Self {
        keys.iter().fold(Self::default(), |path, key| path.key(key))
    }

    fn with(&self, step: Step) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (step, first) in self
            .0
            .iter()
            .zip(std::iter::once(true).chain(std::iter::repeat(false)))
        {
            match step {
                // A key with a dot would read as two.
                Step::Key(key) if key.contains(['.', '[', ']']) || key.is_empty() => {
                    write!(f, "[{key:?}]")?;
                }
                Step::Key(key) if first => write!(f, "{key}")?,
                Step::Key(key) => write!(f, ".{key}")?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

// === impl Tree ===

impl Tree {
    /// The value below a key.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        match &self.node {
            Kind::Map(entries) => entries
                .iter()
                .find(|(name, _)| name == key)
                .map(|(_, value)| value),
            Kind::List(_) | Kind::Scalar(_) => None,
        }
    }

    /// The line of a path. A missing step has the line of the last existing step.
    pub(crate) fn line_of(&self, path: &Path) -> Option<u64> {
        let mut here = self;
        for step in &path.0 {
            let next = match (step, &here.node) {
                (Step::Key(key), _) => here.get(key),
                (Step::Index(index), Kind::List(items)) => items.get(*index),
                (Step::Index(_), _) => None,
            };
            let Some(next) = next else { break };
            here = next;
        }
        Some(here.line).filter(|&line| line > 0)
    }

    /// Whether the value is null.
    pub(crate) fn is_null(&self) -> bool {
        self.node == Kind::Scalar(Value::Null)
    }

    /// The value alone. What is null is left out of maps: the API server does the same.
    pub(crate) fn value(&self) -> Value {
        match &self.node {
            Kind::Scalar(value) => value.clone(),
            Kind::List(items) => items.iter().map(Self::value).collect(),
            Kind::Map(entries) => {
                let present = entries.iter().filter(|(_, value)| !value.is_null());
                present
                    .map(|(key, value)| (key.clone(), value.value()))
                    .collect()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Kind>::deserialize(deserializer)?;
        Ok(Self {
            line: spanned.referenced.line(),
            node: spanned.value,
        })
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KindVisitor;

        impl<'de> Visitor<'de> for KindVisitor {
            type Value = Kind;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E: de::Error>(self) -> Result<Kind, E> {
                Ok(Kind::Scalar(Value::Null))
            }

            fn visit_none<E: de::Error>(self) -> Result<Kind, E> {
                self.visit_unit()
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Kind, E> {
                Ok(Kind::Scalar(value.into()))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Kind, E> {
                Ok(Kind::Scalar(value.into()))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Kind, E> {
                Ok(Kind::Scalar(value.into()))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Kind, E> {
                Ok(Kind::Scalar(value.into()))
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Kind, E> {
                Ok(Kind::Scalar(value.into()))
            }

            fn visit_string<E: de::Error>(self, value: String) -> Result<Kind, E> {
                Ok(Kind::Scalar(value.into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Kind, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(Kind::List(list))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Kind, A::Error> {
                let mut map = Vec::new();
                while let Some(entry) = entries.next_entry()? {
                    map.push(entry);
                }
                Ok(Kind::Map(map))
            }
        }

        deserializer.deserialize_any(KindVisitor)
    }
}
