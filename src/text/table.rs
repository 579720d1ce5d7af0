//! [`Table`]: rows under headings, for a terminal of any width.
//!
//! A word is never broken, because nobody can read or copy half of one. A narrow table wraps its cells between words and after
//! commas, and where that isn't enough, it leaves out the columns that say the least.

use std::ops::Range;

use console::measure_text_width;

/// A column with a sentence does not become narrower than this, because nobody reads one word on each line.
const SENTENCE: usize = 24;

/// The space before and after each cell.
const PADDING: usize = 2;

/// A table for people. Cells hold one line each.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    right: Range<usize>,
    optional: Vec<usize>,
}

// === impl Table ===

impl Table {
    /// An empty table; the first row holds the headings.
    pub(crate) fn new(headings: Vec<String>) -> Self {
        Self {
            rows: vec![headings],
            ..Self::default()
        }
    }

    pub(crate) fn add_row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Puts the cells of some columns, counted from 0, at the right edge.
    #[cfg(any(feature = "demo", feature = "bench", test))]
    pub(crate) fn align_right(&mut self, columns: Range<usize>) {
        self.right = columns;
    }

    /// Names the columns, counted from 0, that a narrow table leaves out, the least important first.
    pub(crate) fn leave_out(&mut self, columns: &[usize]) {
        columns.clone_into(&mut self.optional);
    }

    /// The lines of the table. Without a width, each row is one line.
    ///
    /// A line is longer than the width only where a single word of the last columns is.
    pub(crate) fn lines(&self, width: Option<usize>) -> Vec<String> {
        let columns = self.columns(width.unwrap_or(usize::MAX));
        let rows = self.rows.iter();
        rows.flat_map(|row| self.row_lines(row, &columns)).collect()
    }

    /// The shown columns, each with its width.
    fn columns(&self, width: usize) -> Vec<(usize, usize)> {
        let count = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let mut shown: Vec<Column> = (0..count).map(|index| self.column(index)).collect();
        let total = |of: fn(&Column) -> usize, shown: &[Column]| -> usize {
            shown.iter().map(|column| of(column) + PADDING).sum()
        };
        for index in &self.optional {
            if total(|column| column.least, &shown) <= width {
                break;
            }
            shown.retain(|column| column.index != *index);
        }
        let mut over = total(|column| column.width, &shown).saturating_sub(width);
        while over > 0 {
            let spare = shown
                .iter_mut()
                .filter(|column| column.width > column.least);
            let Some(widest) = spare.max_by_key(|column| column.width) else {
                break;
            };
            widest.width -= 1;
            over -= 1;
        }
        let shown = shown.into_iter();
        shown.map(|column| (column.index, column.width)).collect()
    }

    fn column(&self, index: usize) -> Column {
        let cells = self.rows.iter().filter_map(|row| row.get(index));
        let (mut width, mut word) = (0, 0);
        for cell in cells {
            width = width.max(measure_text_width(cell));
            let words = pieces(cell).map(|piece| measure_text_width(piece.trim_end()));
            word = word.max(words.max().unwrap_or_default());
        }
        let is_sentence = width > SENTENCE;
        Column {
            index,
            width,
            least: if is_sentence {
                word.max(SENTENCE)
            } else {
                word
            },
        }
    }

    fn row_lines(&self, row: &[String], columns: &[(usize, usize)]) -> Vec<String> {
        let cells = columns.iter().map(|&(index, width)| {
            let cell = row.get(index).map_or("", String::as_str);
            (index, width, wrapped(cell, width))
        });
        let cells: Vec<_> = cells.collect();
        let high = cells.iter().map(|(_, _, lines)| lines.len()).max();
        let line = |number: usize| {
            let mut line = String::new();
            for (index, width, lines) in &cells {
                let text = lines.get(number).map_or("", String::as_str);
                let missing = width.saturating_sub(measure_text_width(text));
                line += &if self.right.contains(index) {
                    format!(" {:missing$}{text} ", "")
                } else {
                    format!(" {text}{:missing$} ", "")
                };
            }
            line.trim_end().to_owned()
        };
        (0..high.unwrap_or_default()).map(line).collect()
    }
}

/// A column's measures, in columns of the terminal.
struct Column {
    index: usize,
    width: usize,
    /// The width below which a word would be broken.
    least: usize,
}

/// The parts of a cell between which a line may end: words, and the ranges of a CPU list. In a long cell, a label such as
/// `training.kubeflow.org/replica-type=worker` has parts, too.
fn pieces(cell: &str) -> impl Iterator<Item = &str> {
    let ends: &[char] = if measure_text_width(cell) > SENTENCE {
        &[' ', ',', '/', '=']
    } else {
        &[' ', ',']
    };
    cell.split_inclusive(ends)
}

/// A cell's lines, none of which is wider than `width` unless a single word is.
fn wrapped(cell: &str, width: usize) -> Vec<String> {
    if measure_text_width(cell) <= width {
        return vec![cell.to_owned()];
    }
    let mut lines = vec![String::new()];
    for piece in pieces(cell) {
        let Some(line) = lines.last_mut() else { break };
        let longer = format!("{line}{piece}");
        if line.is_empty() || measure_text_width(longer.trim_end()) <= width {
            *line = longer;
        } else {
            lines.push(piece.to_owned());
        }
    }
    for line in &mut lines {
        line.truncate(line.trim_end().len());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let row = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
        let mut table = Table::new(row(["POD", "QOS", "CPUS", "WHY"]));
        table.add_row(row([
            "train/worker-0",
            "Guaranteed",
            "2-3,18-19,34-35",
            "Guaranteed, CPU limit 4, and a training pod",
        ]));
        table.leave_out(&[1, 3]);
        table
    }

    #[test]
    fn a_wide_table_has_a_line_for_each_row() {
        let lines = [
            " POD             QOS         CPUS             WHY",
            " train/worker-0  Guaranteed  2-3,18-19,34-35  Guaranteed, CPU limit 4, and a training pod",
        ];
        assert_eq!(table().lines(None), lines);
        assert_eq!(table().lines(Some(lines[1].len() + 1)), lines);
    }

    #[test]
    fn a_narrow_table_wraps_between_words_and_drops_columns() {
        let narrow = |width| table().lines(Some(width));
        assert_eq!(
            narrow(68),
            [
                " POD             QOS         CPUS          WHY",
                " train/worker-0  Guaranteed  2-3,18-19,    Guaranteed, CPU limit 4,",
                "                             34-35         and a training pod",
            ]
        );
        assert_eq!(
            narrow(40),
            [" POD             CPUS", " train/worker-0  2-3,18-19,34-35",]
        );
        // Nothing is left to drop, so the line is longer than the terminal, but no word is broken.
        assert_eq!(
            narrow(10),
            [
                " POD             CPUS",
                " train/worker-0  2-3,",
                "                 18-19,",
                "                 34-35",
            ]
        );
    }

    #[test]
    fn numbers_stand_at_the_right_edge() {
        let mut table = Table::new(vec!["".into(), "STEPS/S".into()]);
        table.add_row(vec!["shared".into(), "9".into()]);
        table.add_row(vec!["pinned, sized".into()]);
        table.align_right(1..2);
        assert_eq!(
            table.lines(None),
            [
                "                STEPS/S",
                " shared               9",
                " pinned, sized"
            ]
        );
    }

    proptest::proptest! {
        #[test]
        fn every_shown_word_is_whole(cells in proptest::collection::vec("[a-z,漢]{0,9}( [a-z,漢]{0,9}){0,4}", 4), width in 0usize..90) {
            let mut table = Table::new(vec!["A".into(), "B".into(), "C".into(), "D".into()]);
            table.add_row(cells.clone());
            table.leave_out(&[3, 2, 1]);
            let lines = table.lines(Some(width));
            let words: Vec<&str> = cells.iter().flat_map(|cell| pieces(cell)).map(str::trim_end).collect();
            for line in lines.iter().skip(1) {
                for word in line.split_whitespace().flat_map(|word| word.split_inclusive(',')) {
                    proptest::prop_assert!(words.contains(&word), "{word:?} in {lines:#?}");
                }
            }
            // Only a table of a single column may be too wide.
            let widest = lines.iter().map(|line| measure_text_width(line)).max().unwrap_or(0);
            proptest::prop_assert!(widest <= width.max(table.column(0).least + PADDING), "{lines:#?}");
        }
    }
}
