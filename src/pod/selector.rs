//! [`Selector`]: a label selector for pods, in the form of `kubectl -l`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Conditions on labels, all of which must hold: `app=train,tier in (a,b),!canary`.
///
/// As in Kubernetes, `!=` and `notin` also hold for a pod without the label. An empty selector,
/// which matches everything in Kubernetes, is refused.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Selector {
    conditions: Vec<LabelRequirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum LabelRequirement {
    In(String, BTreeSet<String>),
    /// The label is absent, or has a value outside the set.
    NotIn(String, BTreeSet<String>),
    Exists(String),
    Absent(String),
}

/// Why a text is not a selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    #[error(
        "the selector is empty: leave it out to select nothing, or write something like app=train"
    )]
    Empty,
    /// A condition in an unknown form.
    #[error(
        "{condition:?} in selector {selector:?} is not a condition: write k=v, k!=v, k in (a,b), k notin (a,b), k or !k"
    )]
    LabelRequirement {
        condition: String,
        /// The whole selector.
        selector: String,
    },
    #[error(
        "{key:?} in selector {selector:?} can't be a label's key: use letters, digits, '-', '_' and '.', at most 63, with an optional prefix/"
    )]
    Key {
        key: String,
        /// The whole selector.
        selector: String,
    },
    #[error(
        "{value:?} in selector {selector:?} can't be a label's value: use letters, digits, '-', '_' and '.', at most 63"
    )]
    Value {
        value: String,
        /// The whole selector.
        selector: String,
    },
}

// === impl Selector ===

impl Selector {
    /// Whether the selector matches a pod's labels.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.conditions.iter().all(|condition| match condition {
            LabelRequirement::In(key, values) => {
                labels.get(key).is_some_and(|value| values.contains(value))
            }
            LabelRequirement::NotIn(key, values) => {
                labels.get(key).is_none_or(|value| !values.contains(value))
            }
            LabelRequirement::Exists(key) => labels.contains_key(key),
            LabelRequirement::Absent(key) => !labels.contains_key(key),
        })
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        if text.trim().is_empty() {
            return Err(SelectorError::Empty);
        }
        let conditions = split(text)
            .into_iter()
            .map(|part| condition(part.trim(), text));
        Ok(Self {
            conditions: conditions.collect::<Result<_, _>>()?,
        })
    }
}

impl TryFrom<String> for Selector {
    type Error = SelectorError;

    fn try_from(text: String) -> Result<Self, SelectorError> {
        text.parse()
    }
}

impl From<Selector> for String {
    fn from(selector: Selector) -> Self {
        selector.to_string()
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |values: &BTreeSet<String>| {
            values
                .iter()
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(",")
        };
        for (index, condition) in self.conditions.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match condition {
                LabelRequirement::In(key, values) if values.len() == 1 => {
                    write!(f, "{comma}{key}={}", list(values))
                }
                LabelRequirement::NotIn(key, values) if values.len() == 1 => {
                    write!(f, "{comma}{key}!={}", list(values))
                }
                LabelRequirement::In(key, values) => {
                    write!(f, "{comma}{key} in ({})", list(values))
                }
                LabelRequirement::NotIn(key, values) => {
                    write!(f, "{comma}{key} notin ({})", list(values))
                }
                LabelRequirement::Exists(key) => write!(f, "{comma}{key}"),
                LabelRequirement::Absent(key) => write!(f, "{comma}!{key}"),
            }?;
        }
        Ok(())
    }
}

/// Splits at the commas outside parentheses.
fn split(text: &str) -> Vec<&str> {
    let mut inside = false;
    text.split(|c| {
        inside = (inside || c == '(') && c != ')';
        c == ',' && !inside
    })
    .collect()
}

fn condition(text: &str, selector: &str) -> Result<LabelRequirement, SelectorError> {
    let unknown = || SelectorError::LabelRequirement {
        condition: text.to_owned(),
        selector: selector.to_owned(),
    };
    let key = |text: &str| key(text.trim(), selector);
    let one = |text: &str| Ok(BTreeSet::from([value(text.trim(), selector)?]));
    if let Some((name, values)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        let values = values
            .split(',')
            .map(|text| value(text.trim(), selector))
            .collect::<Result<_, _>>()?;
        let mut words = name.split_whitespace();
        return match (words.next(), words.next(), words.next()) {
            (Some(name), Some("in"), None) => Ok(LabelRequirement::In(key(name)?, values)),
            (Some(name), Some("notin"), None) => Ok(LabelRequirement::NotIn(key(name)?, values)),
            _ => Err(unknown()),
        };
    }
    if let Some((name, value)) = text.split_once("!=") {
        return Ok(LabelRequirement::NotIn(key(name)?, one(value)?));
    }
    if let Some((name, value)) = text.split_once('=') {
        return Ok(LabelRequirement::In(
            key(name)?,
            one(value.strip_prefix('=').unwrap_or(value))?,
        ));
    }
    if text.is_empty() || text.contains(char::is_whitespace) {
        return Err(unknown());
    }
    match text.strip_prefix('!') {
        Some(name) => Ok(LabelRequirement::Absent(key(name)?)),
        None => Ok(LabelRequirement::Exists(key(text)?)),
    }
}

fn key(text: &str, selector: &str) -> Result<String, SelectorError> {
    let (prefix, name) = text
        .split_once('/')
        .map_or((None, text), |(prefix, name)| (Some(prefix), name));
    let label = |text: &str| {
        text.bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b))
    };
    let prefixed = prefix.is_none_or(|prefix| (1..=253).contains(&prefix.len()) && label(prefix));
    if prefixed && !name.is_empty() && is_name(name) {
        Ok(text.to_owned())
    } else {
        Err(SelectorError::Key {
            key: text.to_owned(),
            selector: selector.to_owned(),
        })
    }
}

fn value(text: &str, selector: &str) -> Result<String, SelectorError> {
    if text.is_empty() || is_name(text) {
        Ok(text.to_owned())
    } else {
        Err(SelectorError::Value {
            value: text.to_owned(),
            selector: selector.to_owned(),
        })
    }
}

/// Whether a text is valid as the second part of a qualified name in Kubernetes.
fn is_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && bytes.iter().all(|&b| inner(b))
        && edge(bytes.first())
        && edge(bytes.last())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|&(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    #[test]
    fn selectors_match_labels() {
        let pod = labels(&[("app", "train"), ("tier", "a"), ("example.com/empty", "")]);
        let cases = [
            ("app=train", true),
            ("app==train", true),
            ("app = train , tier = a", true),
            ("app=train,tier=b", false),
            ("app!=train", false),
            ("app!=other", true),
            ("missing!=x", true),
            ("tier in (a,b)", true),
            ("tier in (b, c)", false),
            ("tier notin (b,c),app=train", true),
            ("tier notin (a)", false),
            ("missing notin (a)", true),
            ("missing in (a)", false),
            ("tier", true),
            ("missing", false),
            ("!missing", true),
            ("!tier", false),
            ("example.com/empty=", true),
            ("example.com/empty in (,x)", true),
            ("example.com/empty", true),
        ];
        for (text, chosen) in cases {
            let selector: Selector = text.parse().unwrap();
            assert_eq!(selector.matches(&pod), chosen, "{text}");
            assert_eq!(selector.to_string().parse(), Ok(selector), "{text}");
        }
    }

    #[test]
    fn invalid_selectors_are_refused() {
        for text in ["", "  "] {
            assert_eq!(text.parse::<Selector>(), Err(SelectorError::Empty));
        }
        for text in ["a b", "a,,b", "a=b,", "a in", "a into (b)", "a in b (c)"] {
            let error = text.parse::<Selector>();
            assert!(
                matches!(error, Err(SelectorError::LabelRequirement { .. })),
                "{text}: {error:?}"
            );
        }
        for text in ["=a", "!", "-a=b", "a/=b", "A/b=c", "/a=b", "ä=b", "a>1"] {
            let error = text.parse::<Selector>();
            assert!(
                matches!(error, Err(SelectorError::Key { .. })),
                "{text}: {error:?}"
            );
        }
        for text in ["a=b c", "a=-b", "a in (b,c d)", "a!=ü"] {
            let error = text.parse::<Selector>();
            assert!(
                matches!(error, Err(SelectorError::Value { .. })),
                "{text}: {error:?}"
            );
        }
        let long = format!("a={}", "x".repeat(64));
        assert!(matches!(
            long.parse::<Selector>(),
            Err(SelectorError::Value { .. })
        ));
    }

    proptest! {
        #[test]
        fn a_selector_survives_being_written(text in "[!a-c=, ()/.inot]{0,24}") {
            if let Ok(selector) = text.parse::<Selector>() {
                prop_assert_eq!(selector.to_string().parse(), Ok(selector));
            }
        }
    }
}
