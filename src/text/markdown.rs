//! Parts of Markdown that is readable as plain text, with texts of others in them.

use std::fmt::Write;

/// A list after a blank line; nothing without lines.
pub(crate) fn list(text: &mut String, lines: impl Iterator<Item = String>) {
    for (at, line) in lines.enumerate() {
        let _ = writeln!(
            text,
            "{}- {}",
            if at == 0 { "\n" } else { "" },
            inline(&line)
        );
    }
}

/// A foreign name in a cell or a line, without characters that end the cell or have a meaning in Markdown.
pub(crate) fn inline(words: &str) -> String {
    let mut text = String::with_capacity(words.len());
    let mut letters = words.chars().peekable();
    let mut before = ' ';
    while let Some(letter) = letters.next() {
        let after = letters.peek().copied().unwrap_or(' ');
        match letter {
            '|' | '\\' | '`' | '<' | '*' | '[' | ']' | '~' | '&' | '$' => {
                text.extend(['\\', letter]);
            }
            // Within a word it means nothing, as in train_steps_total.
            '_' if !(before.is_alphanumeric() && after.is_alphanumeric()) => text.push_str("\\_"),
            '#' if before == ' ' => text.push_str("\\#"),
            // At the beginning it would be a list in a list.
            '-' | '+' if text.is_empty() && after == ' ' => text.extend(['\\', letter]),
            letter if letter.is_control() => text.push(' '),
            letter => text.push(letter),
        }
        before = letter;
    }
    text
}

/// Columns of equal width, for people who read the Markdown as plain text.
pub(crate) fn table(head: &[String], rows: &[Vec<String>]) -> String {
    let wide = |at: usize| {
        let cells = std::iter::once(head).chain(rows.iter().map(Vec::as_slice));
        cells
            .filter_map(|row| row.get(at))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..head.len()).map(wide).collect();
    let line = |row: &[String]| {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, wide)| {
                format!(
                    "{cell}{}",
                    " ".repeat(wide.saturating_sub(cell.chars().count()))
                )
            })
            .collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let rule: Vec<String> = widths
        .iter()
        .map(|wide| "-".repeat((*wide).max(3)))
        .collect();
    let mut text = line(head) + &format!("| {} |\n", rule.join(" | "));
    text.extend(rows.iter().map(|row| line(row)));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_means_anything_in_markdown() {
        for (words, text) in [
            ("ps 0, train_steps_total", "ps 0, train_steps_total"),
            ("a|b\\`c`<d>*e*", "a\\|b\\\\\\`c\\`\\<d>\\*e\\*"),
            (
                "![x](y) ~~z~~ &lt; $1$",
                "!\\[x\\](y) \\~\\~z\\~\\~ \\&lt; \\$1\\$",
            ),
            ("_a_ b__ c_d", "\\_a\\_ b\\_\\_ c_d"),
            ("# a #b c#", "\\# a \\#b c#"),
            ("- a - b", "\\- a - b"),
            ("a\nb\u{1b}[0m\r\u{85}c", "a b \\[0m  c"),
            ("", ""),
        ] {
            assert_eq!(inline(words), text, "{words}");
        }
    }
}
