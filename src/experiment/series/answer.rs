//! What a Prometheus answers to a query, as series of numbers.

use std::collections::BTreeMap;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// The values of a set of labels, each with its time in seconds since 1970.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Series {
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The values in the order of time, without NaN and infinities.
    pub points: Vec<(f64, f64)>,
}

// === impl Series ===

impl Series {
    /// A label's value; empty for a missing label, as in Prometheus.
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }

    /// The last value.
    pub fn last(&self) -> Option<f64> {
        self.points.last().map(|(_, value)| *value)
    }
}

/// All series of an answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer {
    /// The series.
    pub series: Vec<Series>,
    /// Prometheus' warnings and hints about the query.
    pub warnings: Vec<String>,
}

/// The reason why an answer has no data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// Prometheus refused the query.
    #[error("{kind}: {message}")]
    Refused {
        /// Prometheus' name for the kind of error.
        kind: String,
        /// Prometheus' message.
        message: String,
    },
    /// An answer that does not follow Prometheus' HTTP API.
    #[error("the answer is not from the HTTP API of Prometheus: {0}")]
    Shape(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    status: String,
    #[serde(borrow)]
    data: Option<AnswerData<'a>>,
    error_type: Option<String>,
    error: Option<String>,
    warnings: Option<Vec<String>>,
    infos: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnswerData<'a> {
    result_type: String,
    /// The raw result. The type decides the content, and a long answer is parsed once.
    #[serde(borrow)]
    result: &'a RawValue,
}

#[derive(Deserialize)]
struct InstantSample {
    metric: BTreeMap<String, String>,
    value: Option<(f64, Number)>,
}

#[derive(Deserialize)]
struct RangeSamples {
    metric: BTreeMap<String, String>,
    values: Option<Vec<(f64, Number)>>,
}

/// A number as Prometheus writes it: in a text, for JSON has no NaN and no infinity.
struct Number(f64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberVisitor;

        impl Visitor<'_> for NumberVisitor {
            type Value = Number;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number in a text")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Number, E> {
                let number = text.parse();
                number
                    .map(Number)
                    .map_err(|_| E::custom(format!("the value {text:?} is not a number")))
            }
        }

        deserializer.deserialize_str(NumberVisitor)
    }
}

/// Reads the answer to an instant or a range query.
///
/// # Errors
/// Prometheus refused, or the text is something else.
pub fn read_answer(bytes: &[u8]) -> Result<Answer, AnswerError> {
    let shape = |error: serde_json::Error| AnswerError::Shape(error.to_string());
    let envelope: Envelope = serde_json::from_slice(bytes).map_err(shape)?;
    if envelope.status != "success" {
        return Err(AnswerError::Refused {
            kind: envelope.error_type.unwrap_or(envelope.status),
            message: envelope
                .error
                .unwrap_or_else(|| "without a reason".to_owned()),
        });
    }
    let data = envelope
        .data
        .ok_or_else(|| AnswerError::Shape("the answer has no data".to_owned()))?;
    let result = data.result.get();
    let all: Vec<RangeSamples> = match data.result_type.as_str() {
        "vector" => {
            let all: Vec<InstantSample> = serde_json::from_str(result).map_err(shape)?;
            let range = |one: InstantSample| RangeSamples {
                metric: one.metric,
                values: one.value.map(|value| vec![value]),
            };
            all.into_iter().map(range).collect()
        }
        "matrix" => serde_json::from_str(result).map_err(shape)?,
        other => {
            return Err(AnswerError::Shape(format!(
                "a result of type {other}, where a vector or a matrix was expected"
            )));
        }
    };
    let mut series = Vec::with_capacity(all.len());
    for RangeSamples {
        metric: labels,
        values,
    } in all
    {
        let values = values.ok_or_else(|| {
            AnswerError::Shape("series of histograms, where numbers were expected".to_owned())
        })?;
        let finite = values
            .into_iter()
            .filter(|(at, Number(value))| at.is_finite() && value.is_finite());
        series.push(Series {
            labels,
            points: finite.map(|(at, Number(value))| (at, value)).collect(),
        });
    }
    let said = [envelope.warnings, envelope.infos];
    Ok(Answer {
        series,
        warnings: said.into_iter().flatten().flatten().collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_and_matrices_are_series() {
        let vector = br#"{"status":"success","data":{"resultType":"vector","result":[
            {"metric":{"pod":"a"},"value":[1700000000.5,"2.5"]},
            {"metric":{"pod":"b"},"value":[1700000000.5,"NaN"]},
            {"metric":{},"value":[1700000000.5,"+Inf"]}]},"warnings":["w"],"infos":["i"]}"#;
        let answer = read_answer(vector).unwrap();
        assert_eq!(answer.series[0].points, [(1_700_000_000.5, 2.5)]);
        assert_eq!(
            (
                answer.series[0].label("pod"),
                answer.series[0].label("none")
            ),
            ("a", "")
        );
        assert!(
            answer.series[1].last().is_none() && answer.series[2].last().is_none(),
            "no number"
        );
        assert_eq!(answer.warnings, ["w", "i"]);
        let matrix = br#"{"status":"success","data":{"resultType":"matrix","result":[
            {"metric":{"pod":"a"},"values":[[1,"1"],[2,"NaN"],[3,"1e3"]]}]}}"#;
        assert_eq!(
            read_answer(matrix).unwrap().series[0].points,
            [(1.0, 1.0), (3.0, 1000.0)]
        );
        for empty in [
            r#"{"status":"success","data":{"resultType":"vector","result":[]}}"#,
            // An answer of a server with Prometheus' API that orders the fields differently.
            r#"{"data":{"result":[],"resultType":"matrix","stats":{}},"warnings":null,"isPartial":false,"status":"success"}"#,
        ] {
            assert_eq!(
                read_answer(empty.as_bytes()),
                Ok(Answer::default()),
                "{empty}"
            );
        }
    }

    proptest::proptest! {
        /// Whatever a real answer is cut or changed to is read, or named; nothing else happens.
        #[test]
        fn no_text_breaks_it(at in 0_usize..200, letter: char) {
            let text = r#"{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"pod":"ä"},"values":[[1.5,"1e3"],[2,"NaN"]]}]},"warnings":["w"]}"#;
            let start: String = text.chars().take(at).collect();
            let _ = read_answer(start.as_bytes());
            let rest: String = text.chars().skip(at + 1).collect();
            let _ = read_answer(format!("{start}{letter}{rest}").as_bytes());
        }
    }

    #[test]
    fn everything_else_is_named() {
        for (text, says) in [
            (
                r#"{"status":"error","errorType":"bad_data","error":"parse error"}"#,
                "bad_data: parse error",
            ),
            (r#"{"status":"error"}"#, "error: without a reason"),
            ("<html>", "not from the HTTP API of Prometheus"),
            ("", "not from the HTTP API of Prometheus"),
            ("[]", "not from the HTTP API of Prometheus"),
            (r#"{"status":"success"}"#, "the answer has no data"),
            (
                r#"{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}"#,
                "of type scalar",
            ),
            (
                r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"histogram":[1,{}]}]}}"#,
                "histograms",
            ),
            (
                r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"x"]}]}}"#,
                "is not a number",
            ),
            (
                r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,1]}]}}"#,
                "not from the HTTP API of Prometheus",
            ),
            (
                r#"{"status":"success","data":{"resultType":"matrix","result":{}}}"#,
                "not from the HTTP API of Prometheus",
            ),
        ] {
            let error = read_answer(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
