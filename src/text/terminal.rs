//! Texts of others where people read them: on a terminal, in a log, in an Event.
//!
//! Whoever writes a pod, a plan or a response decides about the characters in it. Printed as they are, an escape character could
//! move the cursor or set the window's title, a newline could forge a line of Pinfold, and a bidirectional control could reorder a
//! line. So each place that prints to people passes its text through [`escape`], one line at a time, and JSON through
//! [`escape_json`]. What a text contains otherwise doesn't matter then.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether a character does something other than stand on a terminal's line: the control characters of ASCII and Latin-1
/// (C0, DEL, C1), those that change the direction of text, and those that nobody sees.
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// A text as one line: each unsafe character becomes an escape sequence of printable characters, such as `\n` or `\u{1b}`.
///
/// A text without such characters stays as it is. Backslashes stay, too, because the result is for people and is never read back.
pub fn escape(text: &str) -> Cow<'_, str> {
    escape_with(text, is_unsafe, |escaped, c| {
        escaped.extend(c.escape_default());
    })
}

/// A text with several lines: [`escape`], but newlines and tabs stay.
pub fn escape_lines(text: &str) -> Cow<'_, str> {
    let is_unsafe = |c| is_unsafe(c) && !matches!(c, '\n' | '\t');
    escape_with(text, is_unsafe, |escaped, c| {
        escaped.extend(c.escape_default());
    })
}

/// A JSON document that means the same and has no unsafe characters besides the whitespace between its values.
///
/// JSON itself only asks for escapes below U+0020, so DEL, C1 and bidirectional controls would reach the terminal.
pub fn escape_json(document: &str) -> Cow<'_, str> {
    // Outside of its strings, a document has ASCII characters only, and in them the library has escaped the others.
    let is_unsafe = |c| is_unsafe(c) && !matches!(c, '\n' | '\r' | '\t');
    escape_with(document, is_unsafe, |escaped, c| {
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a String can't fail.
            let _ = write!(escaped, "\\u{unit:04x}");
        }
    })
}

fn escape_with(
    text: &str,
    is_unsafe: impl Fn(char) -> bool,
    escape: impl Fn(&mut String, char),
) -> Cow<'_, str> {
    if !text.contains(&is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unsafe(c) {
            escape(&mut escaped, c);
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn unsafe_characters_become_printable() {
        for (text, escaped) in [
            ("worker-0 é漢 'a' \\n", "worker-0 é漢 'a' \\n"),
            (
                "4\u{1b}]0;t\u{7}\nContainer other",
                "4\\u{1b}]0;t\\u{7}\\nContainer other",
            ),
            ("\u{9b}31m\u{7f}\r\t", "\\u{9b}31m\\u{7f}\\r\\t"),
            (
                "a\u{202e}b\u{2066}\u{200b}\u{feff}\u{e0041}",
                "a\\u{202e}b\\u{2066}\\u{200b}\\u{feff}\\u{e0041}",
            ),
        ] {
            assert_eq!(escape(text), escaped);
        }
        assert_eq!(escape_lines("a: \u{1b}\n\tb\n"), "a: \\u{1b}\n\tb\n");
    }

    proptest! {
        #[test]
        fn nothing_unsafe_remains(text in any::<String>()) {
            prop_assert!(!escape(&text).contains(is_unsafe));
            prop_assert_eq!(escape_lines(&text).lines().count(), text.lines().count());
        }

        #[test]
        fn json_keeps_its_meaning(text in any::<String>(), odd in "[\u{80}-\u{9f}\u{202a}-\u{202e}\u{e0001}-\u{e0010}\u{7f}]{0,5}") {
            let value = serde_json::json!({"a": [format!("{text}{odd}")], odd: 1});
            for document in [serde_json::to_string(&value).unwrap(), serde_json::to_string_pretty(&value).unwrap()] {
                let escaped = escape_json(&document);
                prop_assert!(!escaped.contains(|c| is_unsafe(c) && c != '\n'), "{}", escaped);
                prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value.clone());
            }
        }
    }
}
