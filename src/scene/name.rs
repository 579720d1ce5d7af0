//! The rules for the names of objects, and for the keys and values of labels.

/// The longest value of a label, and the longest name in a key. The definition's rules and `check`
/// both use it.
pub(super) const LONGEST_NAME: usize = 63;

/// The longest DNS name: an object's name, or the prefix of a key.
pub(super) const LONGEST_PREFIX: usize = 253;

/// The domains whose keys Kubernetes reserves. The definition's rules and `check` both use them.
pub(super) const RESERVED_DOMAINS: [&str; 2] = ["kubernetes.io", "k8s.io"];

/// The reason why a text can't be a label's value, with the correction; `None` for a valid value.
pub fn value_fault(value: &str) -> Option<String> {
    if value.len() > LONGEST_NAME {
        return Some(format!(
            "{} characters are more than the {LONGEST_NAME} of a label's value",
            value.len()
        ));
    }
    name_fault(value).filter(|_| !value.is_empty())
}

/// The reason why a text can't be a label's key; `None` for a valid key.
pub fn key_fault(key: &str) -> Option<String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if let Some(prefix) = prefix
        && let Some(fault) = subdomain_fault(prefix)
    {
        return Some(format!("the prefix {prefix:?} is not a DNS name: {fault}"));
    }
    if name.is_empty() {
        return Some("the name is missing".to_owned());
    }
    if name.len() > LONGEST_NAME {
        return Some(format!(
            "{} characters in the name are more than the limit {LONGEST_NAME}",
            name.len()
        ));
    }
    name_fault(name)
}

/// The reason why a text can't be an object's name; `None` for a valid name.
pub fn subdomain_fault(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("the text is empty".to_owned());
    }
    if name.len() > LONGEST_PREFIX {
        return Some(format!(
            "{} characters are more than the limit {LONGEST_PREFIX}",
            name.len()
        ));
    }
    let part = |part: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !part.is_empty()
            && part.chars().all(inner)
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    (!name.split('.').all(part)).then(|| {
        "use lower-case letters, digits, '-' and '.', with a letter or digit at the start and end of each part".to_owned()
    })
}

/// The reserved domain of a key, if any. A node may not label itself with most of the reserved keys.
pub fn reserved_domain(key: &str) -> Option<&'static str> {
    let (prefix, _) = key.split_once('/')?;
    RESERVED_DOMAINS.into_iter().find(|domain| {
        prefix
            .strip_suffix(domain)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    })
}

fn name_fault(text: &str) -> Option<String> {
    let strange = text
        .chars()
        .find(|&c| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')));
    if let Some(strange) = strange {
        return Some(format!(
            "{strange:?} is not allowed; use letters, digits, '-', '_' and '.'"
        ));
    }
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    (!edge(text.chars().next()) || !edge(text.chars().next_back()))
        .then(|| "the first and the last character must be a letter or a digit".to_owned())
}
