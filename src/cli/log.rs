//! The log's lines. An entry is one line, whatever texts of others its message and fields hold.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::{DefaultFields, Writer};
use tracing_subscriber::fmt::{FormatFields, MakeWriter, layer};
use tracing_subscriber::registry::LookupSpan;

use crate::text::terminal::{escape, escape_json};

/// Log lines for people, coloured when standard error is a terminal.
pub(super) fn text<S, W>(writer: W) -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    layer()
        .with_writer(writer)
        .with_target(false)
        .with_ansi(io::stderr().is_terminal())
        .fmt_fields(EscapedFields)
}

/// Log lines for programs, a JSON object each.
pub(super) fn json<S, W>(writer: W) -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    layer()
        .with_writer(JsonWriter(writer))
        .with_target(false)
        .json()
}

/// The message and the fields as the library formats them, without colours and with unsafe characters escaped.
struct EscapedFields;

impl<'w> FormatFields<'w> for EscapedFields {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut text = String::new();
        DefaultFields::new().format_fields(Writer::new(&mut text), fields)?;
        writer.write_str(&escape(&text))
    }
}

/// Escapes the characters that JSON itself lets through.
struct JsonWriter<W>(W);

impl<'w, W: MakeWriter<'w>> MakeWriter<'w> for JsonWriter<W> {
    type Writer = JsonWriter<W::Writer>;

    fn make_writer(&'w self) -> Self::Writer {
        JsonWriter(self.0.make_writer())
    }
}

impl<W: Write> Write for JsonWriter<W> {
    /// Writes an entry. The library passes each one as a whole.
    fn write(&mut self, entry: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(entry);
        self.0.write_all(escape_json(&text).as_bytes())?;
        Ok(entry.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
