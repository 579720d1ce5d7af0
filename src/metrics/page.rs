//! [`Page`]: the series of a scrape as text.
//!
//! A series is a line: the family's name, the labels, and the value. Each family has a single
//! buffer for all of its lines, so a node with tens of thousands of series needs a few dozen
//! buffers. Labels are formatted once per container.
//!
//! The encoder of the crate `prometheus` needs a value in memory for each series, with copies of the names and values of
//! the labels. On a page of 1,000 containers (36,000 series, 3.8 MB), the crate took 9.1 times the CPU time of Pinfold's
//! writer (20.4 ms, of which the encoder takes 8.4 ms, against 2.3 ms), and 3.5 times the peak memory. Pinfold's writer
//! stays only as long as the crate costs more: `cargo bench --bench scrape -- page` measures both. The agent's own metrics
//! use the crate.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use prometheus::proto::{self, MetricType};

use super::families::{Family, FamilyKind};
use super::value::Value;

/// The format of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Format {
    /// Prometheus' classic text format.
    #[default]
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

// === impl Format ===

impl Format {
    /// The preferred format of an `Accept` header. The default is the text format.
    pub fn accepted(header: &str) -> Self {
        let mut best = (0.0, Self::Text);
        for range in header.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let format = match parts.next().unwrap_or_default() {
                "application/openmetrics-text" => Self::OpenMetrics,
                "text/plain" | "text/*" | "*/*" => Self::Text,
                _ => continue,
            };
            let parameters: Vec<(&str, &str)> =
                parts.filter_map(|part| part.split_once('=')).collect();
            let of = |name: &str| {
                parameters
                    .iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| *value)
            };
            // A missing version means the newest. For these families, the versions 0.0.1 and 1.0.0 are the same.
            let version = of("version").unwrap_or("1.0.0");
            if format == Self::OpenMetrics && !matches!(version, "0.0.1" | "1.0.0") {
                continue;
            }
            let weight = of("q").map_or(1.0, |q| q.parse().unwrap_or(0.0));
            if weight > best.0 {
                best = (weight, format);
            }
        }
        best.1
    }

    /// The content type in HTTP.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => prometheus::TEXT_FORMAT,
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The labels of a line without the braces.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Labels(String);

// === impl Labels ===

impl Labels {
    /// Formats names and values. Special characters in a value are escaped.
    pub fn new(labels: &[(&str, &str)]) -> Self {
        // Each label also needs a comma, an equals sign and two quotes.
        let length = labels
            .iter()
            .map(|(name, value)| name.len() + value.len() + 4)
            .sum();
        let mut text = String::with_capacity(length);
        add(&mut text, true, labels);
        Self(text)
    }
}

/// Appends labels to earlier labels.
fn add(text: &mut String, mut is_first: bool, labels: &[(&str, &str)]) {
    for (name, value) in labels {
        if !std::mem::take(&mut is_first) {
            text.push(',');
        }
        text.push_str(name);
        text.push_str("=\"");
        escape(text, value, true);
        text.push('"');
    }
}

fn escape(text: &mut String, value: &str, quotes: bool) {
    if !value
        .bytes()
        .any(|byte| matches!(byte, b'\\' | b'\n' | b'"'))
    {
        return text.push_str(value);
    }
    for letter in value.chars() {
        match letter {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '"' if quotes => text.push_str("\\\""),
            other => text.push(other),
        }
    }
}

/// The length of most lines, at most.
const LINE: usize = 256;

/// The lines of a family.
#[derive(Debug, Clone)]
pub struct Lines {
    name: Cow<'static, str>,
    kind: &'static str,
    help: Cow<'static, str>,
    text: String,
}

// === impl Lines ===

impl Lines {
    pub(crate) fn of(family: &'static Family) -> Self {
        let kind = match family.kind {
            FamilyKind::Counter => "counter",
            FamilyKind::Gauge => "gauge",
            FamilyKind::Info => "info",
            FamilyKind::Histogram => "histogram",
        };
        Self {
            name: family.name.into(),
            kind,
            help: family.help.into(),
            text: String::new(),
        }
    }

    pub(super) fn put(&mut self, labels: &Labels, value: impl Value) {
        self.put_with(labels, &[], value);
    }

    /// Adds a series if the value is known.
    pub(super) fn put_known(&mut self, labels: &Labels, value: Option<impl Value>) {
        if let Some(value) = value {
            self.put(labels, value);
        }
    }

    /// Adds a series with shared labels and further labels.
    pub fn put_with(&mut self, labels: &Labels, more: &[(&str, &str)], value: impl Value) {
        self.line("", labels, more, value);
    }

    /// Adds a histogram: the count of each bucket, with a last bucket above all bounds, and the sum of all values.
    pub(super) fn put_histogram(
        &mut self,
        labels: &Labels,
        bounds: &[f64],
        counts: &[u64],
        sum: f64,
    ) {
        let mut all = 0;
        let bounds = bounds.iter().copied().chain([f64::INFINITY]);
        for (bound, count) in bounds.zip(counts) {
            all += count;
            let mut text = String::new();
            bound.write(&mut text);
            self.line("_bucket", labels, &[("le", &text)], all);
        }
        self.line("_sum", labels, &[], sum);
        self.line("_count", labels, &[], all);
    }

    fn line(&mut self, suffix: &str, labels: &Labels, more: &[(&str, &str)], value: impl Value) {
        // Growth in large steps avoids copies, and memory that nobody has written costs nothing.
        if self.text.capacity() - self.text.len() < LINE {
            self.text.reserve(3 * self.text.len() + LINE);
        }
        self.text.push_str(&self.name);
        self.text.push_str(suffix);
        if !labels.0.is_empty() || !more.is_empty() {
            self.text.push('{');
            self.text.push_str(&labels.0);
            add(&mut self.text, labels.0.is_empty(), more);
            self.text.push_str("} ");
        } else {
            self.text.push(' ');
        }
        value.write(&mut self.text);
        self.text.push('\n');
    }

    /// A family of the registry with all series.
    fn of_registry(family: &proto::MetricFamily) -> Self {
        let (name, help) = (
            family.name().to_owned().into(),
            family.help().to_owned().into(),
        );
        let kind = match family.get_field_type() {
            MetricType::COUNTER => "counter",
            MetricType::HISTOGRAM => "histogram",
            _ => "gauge",
        };
        let mut lines = Self {
            name,
            kind,
            help,
            text: String::new(),
        };
        for metric in family.get_metric() {
            let labels: Vec<(&str, &str)> = metric
                .get_label()
                .iter()
                .map(|label| (label.name(), label.value()))
                .collect();
            let labels = Labels::new(&labels);
            match family.get_field_type() {
                MetricType::COUNTER => lines.put(&labels, metric.get_counter().get_value()),
                MetricType::HISTOGRAM => {
                    let histogram = metric.get_histogram();
                    for bucket in histogram.get_bucket() {
                        let mut bound = String::new();
                        bucket.upper_bound().write(&mut bound);
                        lines.line(
                            "_bucket",
                            &labels,
                            &[("le", &bound)],
                            bucket.cumulative_count(),
                        );
                    }
                    let count = histogram.get_sample_count();
                    lines.line("_bucket", &labels, &[("le", "+Inf")], count);
                    lines.line("_sum", &labels, &[], histogram.get_sample_sum());
                    lines.line("_count", &labels, &[], count);
                }
                _ => lines.put(&labels, metric.get_gauge().get_value()),
            }
        }
        lines
    }
}

/// Writes a histogram's lines with float bounds: OpenMetrics wants `1.0` instead of `1`.
fn push_with_points(text: &mut String, series: &str) {
    for line in series.split_inclusive('\n') {
        // The bound is the last label.
        let bound = line
            .rsplit_once("le=\"")
            .and_then(|(start, rest)| Some((start, rest.split_once('"')?)));
        match bound {
            Some((start, (bound, rest))) if bound.bytes().all(|byte| byte.is_ascii_digit()) => {
                let _ = write!(text, "{start}le=\"{bound}.0\"{rest}");
            }
            _ => text.push_str(line),
        }
    }
}

/// A family with less text is copied and not shared.
const SHARED_MIN: usize = 4096;

/// A piece of a page as text.
#[derive(Debug, Clone)]
pub struct Chunk(ChunkContent);

#[derive(Debug, Clone)]
enum ChunkContent {
    Own(String),
    /// The series of a family.
    Series(Arc<Lines>),
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        match &self.0 {
            ChunkContent::Own(text) => text.as_bytes(),
            ChunkContent::Series(lines) => lines.text.as_bytes(),
        }
    }
}

/// All families of a scrape. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Page {
    families: Vec<Arc<Lines>>,
    /// The buffers of an earlier page, for reuse.
    spare: HashMap<Cow<'static, str>, String>,
}

// === impl Page ===

impl Page {
    /// An empty page with the buffers of this page.
    #[must_use]
    pub fn emptied(self) -> Self {
        let buffer = |lines: Arc<Lines>| {
            let Lines { name, mut text, .. } = Arc::try_unwrap(lines).ok()?;
            text.clear();
            Some((name, text))
        };
        Self {
            families: Vec::new(),
            spare: self.families.into_iter().filter_map(buffer).collect(),
        }
    }

    /// Frees the unused buffers.
    pub(super) fn without_spare_buffers(self) -> Self {
        Self {
            families: self.families,
            spare: HashMap::new(),
        }
    }

    /// An empty family, for a later [`Page::add`].
    pub fn lines(&mut self, family: &'static Family) -> Lines {
        Lines {
            text: self.spare.remove(family.name).unwrap_or_default(),
            ..Lines::of(family)
        }
    }

    /// The family if already added, else an empty family, for a later [`Page::add`].
    pub(super) fn more_lines(&mut self, family: &'static Family) -> Lines {
        let index = self
            .families
            .iter()
            .position(|lines| lines.name == family.name);
        let taken = index.map(|index| self.families.swap_remove(index));
        taken.map_or_else(|| self.lines(family), Arc::unwrap_or_clone)
    }

    /// Adds a family, unless it has no series.
    pub fn add(&mut self, mut lines: Lines) {
        if !lines.text.is_empty() {
            // After many pods have ended, most of the buffer may be unused.
            if lines.text.capacity() / 4 > lines.text.len() {
                lines.text.shrink_to_fit();
            }
            self.families.push(Arc::new(lines));
        }
    }

    /// Adds a family with a single series and no labels.
    pub(crate) fn add_one(&mut self, family: &'static Family, value: impl Value) {
        let mut lines = Lines::of(family);
        lines.put(&Labels::default(), value);
        self.add(lines);
    }

    /// Adds an info family with a single series.
    pub(crate) fn add_info(&mut self, family: &'static Family, labels: &[(&str, &str)]) {
        let mut lines = Lines::of(family);
        lines.put_with(&Labels::default(), labels, true);
        self.add(lines);
    }

    pub(super) fn add_registry(&mut self, families: &[proto::MetricFamily]) {
        families
            .iter()
            .for_each(|family| self.add(Lines::of_registry(family)));
    }

    /// The page as text.
    pub fn text(&self, format: Format) -> String {
        let chunks = self.chunks(format);
        chunks
            .iter()
            .map(|chunk| String::from_utf8_lossy(chunk.as_ref()))
            .collect()
    }

    /// The page as text in pieces, sorted by family.
    pub fn chunks(&self, format: Format) -> Vec<Chunk> {
        let mut families: Vec<&Arc<Lines>> = self.families.iter().collect();
        families.sort_by(|one, other| one.name.cmp(&other.name));
        let (mut chunks, mut text) = (Vec::new(), String::new());
        for lines in families {
            let Lines {
                name,
                kind,
                help,
                text: series,
            } = lines.as_ref();
            // OpenMetrics names a family without the suffix of its kind. The text format has no kind `info`.
            let (name, kind) = match (format, *kind) {
                (Format::OpenMetrics, "counter") => {
                    (name.strip_suffix("_total").unwrap_or(name), *kind)
                }
                (Format::OpenMetrics, "info") => {
                    (name.strip_suffix("_info").unwrap_or(name), *kind)
                }
                (Format::Text, "info") => (name.as_ref(), "gauge"),
                _ => (name.as_ref(), *kind),
            };
            let _ = write!(text, "# HELP {name} ");
            escape(&mut text, help, format == Format::OpenMetrics);
            let _ = writeln!(text, "\n# TYPE {name} {kind}");
            match (format, kind) {
                (Format::OpenMetrics, "histogram") => push_with_points(&mut text, series),
                _ if series.len() < SHARED_MIN => text.push_str(series),
                _ => {
                    chunks.push(Chunk(ChunkContent::Own(std::mem::take(&mut text))));
                    chunks.push(Chunk(ChunkContent::Series(Arc::clone(lines))));
                }
            }
        }
        if format == Format::OpenMetrics {
            text.push_str("# EOF\n");
        }
        chunks.push(Chunk(ChunkContent::Own(text)));
        chunks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static TRAFFIC: Family = Family {
        name: "traffic_bytes_total",
        kind: FamilyKind::Counter,
        help: "Bytes \"so far\".",
        labels: &["pod"],
    };
    static MORE: Family = Family {
        name: "more_bytes_total",
        kind: FamilyKind::Counter,
        help: "More.",
        labels: &["pod"],
    };
    static BUILD: Family = Family {
        name: "build_info",
        kind: FamilyKind::Info,
        help: "What it is.",
        labels: &[],
    };

    fn page() -> Page {
        let mut page = Page::default();
        let mut traffic = Lines::of(&TRAFFIC);
        let pod = Labels::new(&[("pod", "a\"b\\c\nd")]);
        traffic.put(&pod, 18_446_744_073_709_551_615_u64);
        traffic.put_with(&pod, &[("interface", "eth0")], 0.5);
        page.add(traffic);
        let mut build = Lines::of(&BUILD);
        build.put_with(&Labels::default(), &[("version", "1")], true);
        page.add(build);
        page.add(Lines::of(&TRAFFIC));
        page
    }

    #[test]
    fn both_formats_say_the_same() {
        let series = "traffic_bytes_total{pod=\"a\\\"b\\\\c\\nd\"} 18446744073709551615\n\
                      traffic_bytes_total{pod=\"a\\\"b\\\\c\\nd\",interface=\"eth0\"} 0.5\n";
        assert_eq!(
            page().text(Format::Text),
            format!(
                "# HELP build_info What it is.\n# TYPE build_info gauge\nbuild_info{{version=\"1\"}} 1\n\
                 # HELP traffic_bytes_total Bytes \"so far\".\n# TYPE traffic_bytes_total counter\n{series}"
            )
        );
        assert_eq!(
            page().text(Format::OpenMetrics),
            format!(
                "# HELP build What it is.\n# TYPE build info\nbuild_info{{version=\"1\"}} 1\n\
                 # HELP traffic_bytes Bytes \\\"so far\\\".\n# TYPE traffic_bytes counter\n{series}# EOF\n"
            )
        );
    }

    #[test]
    fn long_families_are_shared_and_the_next_page_has_their_room() {
        let mut page = page();
        let mut traffic = page.lines(&MORE);
        let pod = Labels::new(&[("pod", "a")]);
        (0..1000_u64).for_each(|number| traffic.put(&pod, number));
        page.add(traffic);
        let text = page.text(Format::Text);
        assert!(
            text.contains("\nmore_bytes_total{pod=\"a\"} 999\n# HELP traffic_bytes_total"),
            "{text}"
        );
        let chunks = page.chunks(Format::Text);
        let series = |chunk: &&Chunk| matches!(chunk.0, ChunkContent::Series(_));
        assert_eq!((chunks.len(), chunks.iter().filter(series).count()), (3, 1));
        // While an answer is on its way, its text is not touched.
        let copy = page.clone();
        assert!(page.emptied().lines(&MORE).text.capacity() == 0);
        drop(chunks);
        let mut next = copy.emptied();
        let mut room = next.lines(&MORE);
        assert!(
            room.text.is_empty() && room.text.capacity() > 10_000,
            "{}",
            room.text.capacity()
        );
        room.put(&pod, 1_u64);
        next.add(room);
        assert!(
            next.families[0].text.capacity() < 1000,
            "what is not needed any more is given back"
        );
        assert_eq!(next.without_spare_buffers().lines(&MORE).text.capacity(), 0);
    }

    #[test]
    fn a_registry_is_written_with_its_histograms() {
        let registry = prometheus::Registry::new();
        let opts =
            prometheus::HistogramOpts::new("wait_seconds", "Waits.").buckets(vec![0.5, 1.0, 10.0]);
        let histogram = prometheus::Histogram::with_opts(opts).unwrap();
        registry.register(Box::new(histogram.clone())).unwrap();
        histogram.observe(0.75);
        let mut page = Page::default();
        page.add_registry(&registry.gather());
        let expected = page.text(Format::Text);
        static WAIT: Family = Family {
            name: "wait_seconds",
            kind: FamilyKind::Histogram,
            help: "Waits.",
            labels: &[],
        };
        let mut again = Lines::of(&WAIT);
        again.put_histogram(&Labels::default(), &[0.5, 1.0, 10.0], &[0, 1, 0, 0], 0.75);
        let mut page = Page::default();
        page.add(again);
        assert_eq!(page.text(Format::Text), expected);
        let mut encoded = Vec::new();
        prometheus::Encoder::encode(
            &prometheus::TextEncoder::new(),
            &registry.gather(),
            &mut encoded,
        )
        .unwrap();
        assert_eq!(expected, String::from_utf8(encoded).unwrap());
        let open = page.text(Format::OpenMetrics);
        let bounds: Vec<&str> = open
            .lines()
            .filter(|line| line.contains("_bucket"))
            .collect();
        let expected = [
            "wait_seconds_bucket{le=\"0.5\"} 0",
            "wait_seconds_bucket{le=\"1.0\"} 1",
            "wait_seconds_bucket{le=\"10.0\"} 1",
            "wait_seconds_bucket{le=\"+Inf\"} 1",
        ];
        assert_eq!(bounds, expected);
    }

    #[test]
    fn a_client_gets_what_it_prefers() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.6,application/openmetrics-text;version=0.0.1;\
                          q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.3";
        for (header, format) in [
            (prometheus, Format::OpenMetrics),
            ("", Format::Text),
            ("*/*", Format::Text),
            ("text/plain", Format::Text),
            ("text/html, application/json", Format::Text),
            ("application/openmetrics-text", Format::OpenMetrics),
            ("application/openmetrics-text; version=2.0.0", Format::Text),
            (
                "application/openmetrics-text;q=0.1, text/plain;q=0.2",
                Format::Text,
            ),
            ("application/openmetrics-text;q=nonsense", Format::Text),
        ] {
            assert_eq!(Format::accepted(header), format, "{header}");
        }
    }
}
