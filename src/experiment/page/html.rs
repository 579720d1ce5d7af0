//! Texts for HTML, in which nothing of others acts.

use std::fmt::Write;

use serde_json::Value;

use crate::text::terminal::escape;

/// A foreign text for an element or a quoted attribute. Control characters, and those that turn the direction of the text,
/// become visible.
pub(super) fn text(words: &str) -> String {
    let mut text = String::with_capacity(words.len());
    for letter in escape(words).chars() {
        match letter {
            '&' => text.push_str("&amp;"),
            '<' => text.push_str("&lt;"),
            '>' => text.push_str("&gt;"),
            '"' => text.push_str("&quot;"),
            '\'' => text.push_str("&#39;"),
            // A number and its sign stay on one line.
            '%' if text.ends_with(' ') => {
                text.pop();
                text.push_str("\u{a0}%");
            }
            letter => text.push(letter),
        }
    }
    text
}

/// A value as JSON that can stand in a `script` element: no text in it ends the element.
pub(super) fn json(value: &Value) -> String {
    let json = value.to_string();
    let mut text = String::with_capacity(json.len());
    for letter in json.chars() {
        match letter {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(text, "\\u{:04x}", u32::from(letter));
            }
            letter => text.push(letter),
        }
    }
    text
}

/// A cell of a table.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    /// As in HTML, with a blank before it.
    attributes: String,
    html: String,
}

// === impl Cell ===

impl Cell {
    /// A number, which stands at the right edge.
    pub(super) fn number(html: String) -> Self {
        Self {
            attributes: String::new(),
            html,
        }
    }

    /// Words of others.
    pub(super) fn words(words: &str) -> Self {
        Self {
            attributes: " class=\"text\"".to_owned(),
            html: text(words),
        }
    }

    /// A number on a background whose strength, from 0 to 1, is that of the number.
    pub(super) fn heat(strength: f64, html: String) -> Self {
        Self {
            attributes: format!(" style=\"--h:{strength:.3}\""),
            html,
        }
    }
}

/// A table that scrolls by itself where the page is narrow. The first cell of a row is its heading.
pub(super) fn table(label: &str, class: &str, head: &[&str], rows: &[Vec<Cell>]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut html = format!(
        "<div class=\"wide\" role=\"region\" tabindex=\"0\" aria-label=\"{}\"><table class=\"{class}\"><thead><tr>",
        text(label)
    );
    // A column that nobody measured is left out.
    let is_known = |at: usize| {
        let mut cells = rows.iter().filter_map(|row| row.get(at));
        at == 0 || cells.any(|cell| !matches!(cell.html.as_str(), "" | "–"))
    };
    for (at, cell) in head.iter().enumerate().filter(|(at, _)| is_known(*at)) {
        // A heading stands as the cells below it.
        let attributes = rows.first().and_then(|row| row.get(at));
        let attributes = attributes.map_or("", |cell| cell.attributes.as_str());
        let attributes = if attributes.contains("class") {
            attributes
        } else {
            ""
        };
        let _ = write!(html, "<th scope=\"col\"{attributes}>{}</th>", text(cell));
    }
    html.push_str("</tr></thead><tbody>\n");
    for row in rows {
        html.push_str("<tr>");
        for (
            at,
            Cell {
                attributes,
                html: cell,
            },
        ) in row.iter().enumerate().filter(|(at, _)| is_known(*at))
        {
            let _ = match at {
                0 => write!(html, "<th scope=\"row\">{cell}</th>"),
                _ => write!(html, "<td{attributes}>{cell}</td>"),
            };
        }
        html.push_str("</tr>\n");
    }
    html + "</tbody></table></div>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_of_which_nothing_is_known_is_left_out() {
        let row = |value: &str| {
            let unknown = Cell::number("–".to_owned());
            vec![Cell::words("a"), unknown, Cell::number(value.to_owned())]
        };
        let html = table(
            "t",
            "",
            &["name", "unknown", "known"],
            &[row("–"), row("1")],
        );
        assert!(!html.contains("unknown"), "{html}");
        assert_eq!(html.matches("<td").count(), 2, "{html}");
    }

    #[test]
    fn no_text_ends_an_element_or_an_attribute() {
        assert_eq!(
            text("</script><img src=x onerror='a' b=\"c\">&\u{202e}\n"),
            "&lt;/script&gt;&lt;img src=x onerror=&#39;a&#39; b=&quot;c&quot;&gt;&amp;\\u{202e}\\n"
        );
        let json = json(&Value::from("</script><!--&\u{2028}"));
        assert_eq!(json, "\"\\u003c/script\\u003e\\u003c!--\\u0026\\u2028\"");
        assert_eq!(
            serde_json::from_str::<String>(&json).unwrap(),
            "</script><!--&\u{2028}"
        );
    }
}
