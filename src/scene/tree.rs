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
    pub(crate) node: ValueKind,
}

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ValueKind {
    /// Null, a boolean, a number or a text.
    Scalar(Value),
    List(Vec<Tree>),
    Map(Vec<(String, Tree)>),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PathStep {
    Key(String),
    Index(usize),
}

/// Where in an object something is, like `spec.scenes[1].cases[0].totals.worker`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path(Vec<PathStep>);

// === impl Path ===

impl Path {
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        self.with(PathStep::Key(key.to_owned()))
    }

    #[must_use]
    pub fn at(&self, index: usize) -> Self {
        self.with(PathStep::Index(index))
    }

    pub fn of(keys: &[&str]) -> Self {
        keys.iter().fold(Self::default(), |path, key| path.key(key))
    }

    fn with(&self, step: PathStep) -> Self {
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
                PathStep::Key(key) if key.contains(['.', '[', ']']) || key.is_empty() => {
                    write!(f, "[{key:?}]")?;
                }
                PathStep::Key(key) if first => write!(f, "{key}")?,
                PathStep::Key(key) => write!(f, ".{key}")?,
                PathStep::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

// === impl Tree ===

impl Tree {
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        match &self.node {
            ValueKind::Map(entries) => entries
                .iter()
                .find(|(name, _)| name == key)
                .map(|(_, value)| value),
            ValueKind::List(_) | ValueKind::Scalar(_) => None,
        }
    }

    /// The line of a path. A missing step has the line of the last existing step.
    pub(crate) fn line_of(&self, path: &Path) -> Option<u64> {
        let mut here = self;
        for step in &path.0 {
            let next = match (step, &here.node) {
                (PathStep::Key(key), _) => here.get(key),
                (PathStep::Index(index), ValueKind::List(items)) => items.get(*index),
                (PathStep::Index(_), _) => None,
            };
            let Some(next) = next else { break };
            here = next;
        }
        Some(here.line).filter(|&line| line > 0)
    }

    pub(crate) fn is_null(&self) -> bool {
        self.node == ValueKind::Scalar(Value::Null)
    }

    /// The value alone. Null values are left out of maps, as the API server does.
    pub(crate) fn value(&self) -> Value {
        match &self.node {
            ValueKind::Scalar(value) => value.clone(),
            ValueKind::List(items) => items.iter().map(Self::value).collect(),
            ValueKind::Map(entries) => {
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
        let spanned = Spanned::<ValueKind>::deserialize(deserializer)?;
        Ok(Self {
            line: spanned.referenced.line(),
            node: spanned.value,
        })
    }
}

impl<'de> Deserialize<'de> for ValueKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KindVisitor;

        impl<'de> Visitor<'de> for KindVisitor {
            type Value = ValueKind;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E: de::Error>(self) -> Result<ValueKind, E> {
                Ok(ValueKind::Scalar(Value::Null))
            }

            fn visit_none<E: de::Error>(self) -> Result<ValueKind, E> {
                self.visit_unit()
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<ValueKind, E> {
                Ok(ValueKind::Scalar(value.into()))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<ValueKind, E> {
                Ok(ValueKind::Scalar(value.into()))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<ValueKind, E> {
                Ok(ValueKind::Scalar(value.into()))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<ValueKind, E> {
                Ok(ValueKind::Scalar(value.into()))
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<ValueKind, E> {
                Ok(ValueKind::Scalar(value.into()))
            }

            fn visit_string<E: de::Error>(self, value: String) -> Result<ValueKind, E> {
                Ok(ValueKind::Scalar(value.into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<ValueKind, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(ValueKind::List(list))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<ValueKind, A::Error> {
                let mut map = Vec::new();
                while let Some(entry) = entries.next_entry()? {
                    map.push(entry);
                }
                Ok(ValueKind::Map(map))
            }
        }

        deserializer.deserialize_any(KindVisitor)
    }
}
