//! Documents from YAML or JSON text, within limits.
//!
//! What all readers of objects have in common: the form of a text, the limits, and the positions of
//! mistakes. What the documents mean is up to the callers.

use serde::de::DeserializeOwned;

use super::parse_errors;

/// The deepest nesting of lists and maps. Kubernetes objects stay far below.
const DEPTH: usize = 64;

/// The limit of repetitions by anchors, in parser events.
const REPEATED: usize = 100_000;

/// The bytes of text for each value: real objects have about twice as many.
const BYTES_OF_A_VALUE: usize = 16;

/// A text's form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextForm {
    /// JSON, with documents in sequence. The JSON parser is many times faster than the YAML parser.
    Json,
    /// YAML with strict texts: a label `CASE: 2` is an error that asks for quotes, as in Kubernetes.
    Yaml,
    /// YAML with unrestricted texts, for callers that check the types.
    PlainYaml,
}

/// A parser's error about a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The document's number, from 1.
    pub document: usize,
    /// The line in the text, if known.
    pub line: Option<u64>,
    /// What stands there, and what to write.
    pub message: String,
    /// Whether the text has another form.
    other_form: bool,
}

/// All documents of a text, and its form.
///
/// A text that begins with a brace is JSON, or YAML in flow style. `longest` is the caller's limit
/// in bytes, from which the other limits follow.
///
/// # Errors
/// The first mistake in it.
pub fn read<T: DeserializeOwned>(
    text: &str,
    longest: usize,
) -> Result<(Vec<T>, TextForm), Mistake> {
    if !text
        .trim_start_matches('\u{feff}')
        .trim_start()
        .starts_with('{')
    {
        return Ok((read_as(text, TextForm::Yaml, longest)?, TextForm::Yaml));
    }
    match read_as(text, TextForm::Json, longest) {
        Ok(documents) => Ok((documents, TextForm::Json)),
        Err(mistake) if mistake.other_form => match read_as(text, TextForm::Yaml, longest) {
            Ok(documents) => Ok((documents, TextForm::Yaml)),
            Err(_) => Err(mistake),
        },
        Err(mistake) => Err(mistake),
    }
}

/// All documents of a text of a known form.
///
/// # Errors
/// The first mistake in it.
pub fn read_as<T: DeserializeOwned>(
    text: &str,
    form: TextForm,
    longest: usize,
) -> Result<Vec<T>, Mistake> {
    let text = text.trim_start_matches('\u{feff}');
    let mut documents = Vec::new();
    if form == TextForm::Json {
        for document in serde_json::Deserializer::from_str(text).into_iter() {
            documents.push(document.map_err(|error| Mistake {
                document: documents.len() + 1,
                line: u64::try_from(error.line()).ok().filter(|&line| line > 0),
                other_form: error.is_syntax(),
                message: parse_errors::json(&error),
            })?);
        }
        return Ok(documents);
    }
    let mut bytes = text.as_bytes();
    for document in serde_saphyr::read_with_options(&mut bytes, options(form, longest)) {
        documents.push(document.map_err(|error: serde_saphyr::Error| {
            Mistake {
                document: documents.len() + 1,
                line: error
                    .location()
                    .map(|location| location.line())
                    .filter(|&line| line > 0),
                message: parse_errors::yaml(&error),
                other_form: false,
            }
        })?);
    }
    Ok(documents)
}

/// The limits that keep a small text from becoming a large value: aliases may repeat anchors only a limited number of
/// times.
fn options(form: TextForm, longest: usize) -> serde_saphyr::Options {
    serde_saphyr::options! {
        no_schema: form == TextForm::Yaml,
        with_snippet: false,
        emit_comments: false,
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: REPEATED },
        budget: serde_saphyr::budget! {
            max_reader_input_bytes: Some(longest),
            max_total_scalar_bytes: longest,
            max_depth: DEPTH,
            max_nodes: (longest / BYTES_OF_A_VALUE).saturating_add(REPEATED),
            max_events: (longest / BYTES_OF_A_VALUE).saturating_mul(3).saturating_add(REPEATED),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(PartialEq, Deserialize)]
    #[serde(expecting = "a thing")]
    struct Example {
        name: Option<String>,
        count: Option<u8>,
        inner: Option<Box<Example>>,
    }

    fn names(text: &str) -> Result<Vec<Option<String>>, (usize, Option<u64>)> {
        let (things, _) =
            read::<Example>(text, 1 << 20).map_err(|mistake| (mistake.document, mistake.line))?;
        Ok(things
            .into_iter()
            .map(|thing| thing.inner.map_or(thing.name, |inner| inner.name))
            .collect())
    }

    #[test]
    fn what_is_not_named_is_skipped_and_nothing_is_no_mistake() {
        let a = Some("a".to_owned());
        for text in [
            r#"{"name": "a", "other": [{"name": 7}], "count": null}"#,
            r#"{"other": {"count": "x"}, "inner": {"name": "a", "inner": null}}"#,
            "name: a\nother: {name: [1, 2], 7: x}\ncount:\n",
            "{name: a, other: ~}",
        ] {
            assert_eq!(names(text), Ok(vec![a.clone()]), "{text}");
        }
        assert_eq!(names("{}"), Ok(vec![None]));
        assert_eq!(names("name: a\n---\nname: a\n"), Ok(vec![a.clone(), a]));
    }

    #[test]
    fn mistakes_have_a_place() {
        for (text, place) in [
            // A list of field values is no object, in JSON or YAML.
            ("{\"inner\":\n[\"a\", 1]}", (1, Some(2))),
            ("name: a\n---\ninner:\n- a\n", (2, Some(4))),
            ("name: a\ncount: 300\n", (1, Some(2))),
            ("{\"name\":\n7}", (1, Some(2))),
            ("name: 7\n", (1, Some(1))),
        ] {
            assert_eq!(names(text), Err(place), "{text}");
        }
        assert_eq!(
            read_as::<String>("7", TextForm::PlainYaml, 100),
            Ok(vec!["7".to_owned()])
        );
        assert!(read_as::<String>("7", TextForm::Yaml, 100).is_err());
        assert!(read_as::<String>(&"a".repeat(101), TextForm::Yaml, 100).is_err());
    }
}
