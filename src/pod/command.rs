//! [`commands`]: the simple commands of a container's command line, as a shell would separate them.
//!
//! A command line is often a script that is passed to a shell as one argument. To see which options
//! belong to which program, it is split as a shell splits it: quotes, comments, separators,
//! redirections and here-documents. Nothing is expanded, so `$N` and `$(nproc)` stay as they are.

use std::iter::Peekable;
use std::str::Chars;

/// Names of shells that take a script after `-c`.
const SHELLS: [&str; 7] = ["sh", "bash", "dash", "ash", "zsh", "ksh", "busybox"];

/// A program with its arguments, or a part of a script without a program, such as `done`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SimpleCommand {
    /// The words, without quotes and redirections.
    pub(super) words: Vec<String>,
    /// Whether the shell goes on without waiting for the end (`&`).
    pub(super) background: bool,
}

/// The simple commands of a container's command line.
pub(super) fn commands(args: &[String]) -> Vec<SimpleCommand> {
    if let Some(script) = script_of(args) {
        return split(script);
    }
    vec![SimpleCommand {
        words: args.to_vec(),
        background: false,
    }]
}

pub(super) fn words(args: &[String]) -> Vec<String> {
    let part = |arg: &String| {
        if arg.contains(char::is_whitespace) || arg.contains(';') {
            split(arg)
                .into_iter()
                .flat_map(|command| command.words)
                .collect()
        } else {
            vec![arg.trim_matches(['"', '\'', ';', '(', ')']).to_owned()]
        }
    };
    let words = args.iter().flat_map(part);
    words.filter(|word| !word.is_empty()).collect()
}

/// The name of a program without its folder.
pub(super) fn base_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or_default()
}

pub(super) fn is_shell(program: &str) -> bool {
    SHELLS.contains(&base_name(program))
}

/// The script that a shell gets as an argument. The shell itself may be the image's entry point, which a manifest does
/// not show.
pub(super) fn script_of(args: &[String]) -> Option<&str> {
    let (first, rest) = args.split_first()?;
    if first.contains(char::is_whitespace) {
        return Some(first);
    }
    let is_named = is_shell(first);
    if !is_named && !first.starts_with('-') {
        return None;
    }
    let mut options = if is_named { rest } else { args }.iter();
    let mut is_script = false;
    while let Some(word) = options.next() {
        match word.strip_prefix('-') {
            Some(letters) if !letters.starts_with('-') => {
                // Without the shell's name, only the usual forms `-c` and `-lc` are taken for a shell's.
                is_script |=
                    letters.contains('c') && (is_named || matches!(letters, "c" | "lc" | "ec"));
                if letters.ends_with('o') {
                    options.next();
                }
            }
            Some(_) => {}
            None if is_script => return Some(word),
            // `busybox sh`
            None if is_shell(word) => {}
            None => return None,
        }
    }
    None
}

pub(super) fn split(script: &str) -> Vec<SimpleCommand> {
    let mut splitter = Splitter {
        rest: script.chars().peekable(),
        commands: Vec::new(),
        current: SimpleCommand::default(),
        word: None,
        is_redirected: false,
        documents: Vec::new(),
        awaits_delimiter: false,
    };
    while let Some(letter) = splitter.rest.next() {
        splitter.take(letter);
    }
    splitter.end_command(false);
    splitter.commands
}

struct Splitter<'a> {
    rest: Peekable<Chars<'a>>,
    commands: Vec<SimpleCommand>,
    current: SimpleCommand,
    /// The word being read.
    word: Option<String>,
    /// Whether the next word is the target of a redirection.
    is_redirected: bool,
    /// Delimiters of here-documents that begin at the next line.
    documents: Vec<String>,
    /// Whether the next word is the delimiter of a here-document.
    awaits_delimiter: bool,
}

// === impl Splitter ===

impl Splitter<'_> {
    fn take(&mut self, letter: char) {
        match letter {
            '#' if self.word.is_none() => {
                while self.rest.next_if(|&next| next != '\n').is_some() {}
            }
            '\n' => {
                self.end_command(false);
                self.skip_documents();
            }
            ';' | '(' | ')' => self.end_command(false),
            '|' => {
                self.rest.next_if(|&next| next == '|' || next == '&');
                self.end_command(false);
            }
            '&' => match self.rest.peek() {
                Some('&') => {
                    self.rest.next();
                    self.end_command(false);
                }
                // `&>file`: the target follows.
                Some('>') => {}
                _ => self.end_command(true),
            },
            '<' | '>' => self.redirect(letter),
            letter if letter.is_whitespace() => self.end_word(),
            _ => self.take_word(letter),
        }
    }

    /// A character of a word, with the quoted text that it begins.
    fn take_word(&mut self, letter: char) {
        let mut word = self.word.take().unwrap_or_default();
        match letter {
            '\'' => word.extend(self.rest.by_ref().take_while(|&next| next != '\'')),
            '"' => {
                while let Some(next) = self.rest.next() {
                    match next {
                        '"' => break,
                        '\\' => word.extend(self.rest.next().filter(|&next| next != '\n')),
                        '$' | '`' => self.take_substitution(next, &mut word),
                        _ => word.push(next),
                    }
                }
            }
            '\\' => match self.rest.next() {
                // A line that goes on. Alone, the backslash is no word.
                Some('\n') if word.is_empty() => return,
                Some('\n') | None => {}
                Some(next) => word.push(next),
            },
            '$' | '`' => self.take_substitution(letter, &mut word),
            _ => word.push(letter),
        }
        self.word = Some(word);
    }

    /// `$(…)`, `${…}` and backquotes belong to a word, with separators and quotes in them.
    fn take_substitution(&mut self, first: char, word: &mut String) {
        word.push(first);
        let (open, close) = match (first, self.rest.peek()) {
            ('`', _) => ('`', '`'),
            (_, Some('(')) => ('(', ')'),
            (_, Some('{')) => ('{', '}'),
            _ => return,
        };
        let mut depth = usize::from(open == close);
        for next in self.rest.by_ref() {
            word.push(next);
            if next == close {
                depth -= 1;
            } else if next == open {
                depth += 1;
            }
            if depth == 0 {
                break;
            }
        }
    }

    fn redirect(&mut self, operator: char) {
        // The number of a file descriptor belongs to the redirection.
        if self
            .word
            .as_ref()
            .is_some_and(|word| word.bytes().all(|letter| letter.is_ascii_digit()))
        {
            self.word = None;
        }
        self.end_word();
        let mut signs = String::from(operator);
        while let Some(next) = self.rest.next_if(|next| "<>&|".contains(*next)) {
            signs.push(next);
        }
        if let Some('(') = self.rest.peek() {
            // `<(…)` is a word.
            let mut word = String::new();
            self.take_substitution(operator, &mut word);
            self.word = Some(word);
        } else if signs == "<<" {
            self.rest.next_if(|&next| next == '-');
            self.awaits_delimiter = true;
        } else {
            self.is_redirected = true;
        }
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else {
            return;
        };
        if self.awaits_delimiter {
            self.awaits_delimiter = false;
            self.documents.push(word);
        } else if self.is_redirected {
            self.is_redirected = false;
        } else {
            self.current.words.push(word);
        }
    }

    fn end_command(&mut self, background: bool) {
        self.end_word();
        (self.is_redirected, self.awaits_delimiter) = (false, false);
        let words = std::mem::take(&mut self.current.words);
        if !words.is_empty() {
            self.commands.push(SimpleCommand { words, background });
        } else if background && let Some(last) = self.commands.last_mut() {
            // `done &` and `(…) &`
            last.background = true;
        }
    }

    fn skip_documents(&mut self) {
        for delimiter in std::mem::take(&mut self.documents) {
            while let Some(line) = self.next_line() {
                if line.trim_start_matches('\t') == delimiter {
                    break;
                }
            }
        }
    }

    /// The rest of the line, without its end; `None` at the end of the script.
    fn next_line(&mut self) -> Option<String> {
        self.rest.peek()?;
        Some(
            self.rest
                .by_ref()
                .take_while(|next| *next != '\n')
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_words(script: &str) -> Vec<Vec<String>> {
        split(script)
            .into_iter()
            .map(|command| command.words)
            .collect()
    }

    #[test]
    fn scripts_are_split_as_a_shell_splits_them() {
        for (script, expected) in [
            ("a b; c\nd", &[&["a", "b"][..], &["c"], &["d"]][..]),
            (
                "a && b || c | d & e",
                &[&["a"], &["b"], &["c"], &["d"], &["e"]],
            ),
            ("a # b; c\nd#e", &[&["a"], &["d#e"]]),
            (r#"a "b; c" 'd "e' f\ g"#, &[&["a", "b; c", "d \"e", "f g"]]),
            ("a \\\n  b\\\nc", &[&["a", "bc"]]),
            (
                "a -n $(nproc --all) \"${N:-4 5}\"",
                &[&["a", "-n", "$(nproc --all)", "${N:-4 5}"]],
            ),
            ("a `b; c` d", &[&["a", "`b; c`", "d"]]),
            ("a >log 2>&1 b &>all c 2> err", &[&["a", "b", "c"]]),
            ("(a b) && { c; }", &[&["a", "b"], &["{", "c"], &["}"]]),
            (
                "cat >hosts <<EOF\nit's one\nmpirun -np 8\nEOF\nb <<- 'X'\n\tx\n\tX\nc",
                &[&["cat"], &["b"], &["c"]],
            ),
            ("diff <(a; b) c <<< text", &[&["diff", "<(a; b)", "c"]]),
            ("a \"unfinished; b", &[&["a", "unfinished; b"]]),
            ("a ''", &[&["a", ""]]),
            (" ; ;\n# only\n", &[]),
        ] {
            assert_eq!(split_words(script), expected, "{script}");
        }
        let background: Vec<_> = split("a & (b; c) & d")
            .iter()
            .map(|c| c.background)
            .collect();
        assert_eq!(background, [true, false, true, false]);
    }

    #[test]
    fn a_shells_script_is_found_behind_its_options() {
        let script = |args: &[&str]| {
            let args: Vec<_> = args.iter().map(|&arg| arg.to_owned()).collect();
            script_of(&args).map(str::to_owned)
        };
        for args in [
            &["sh", "-c", "a b"][..],
            &["/bin/bash", "-lc", "--", "a b"],
            &["bash", "-e", "-o", "pipefail", "-c", "a b"],
            &["bash", "-euxo", "pipefail", "-c", "a b", "name"],
            &["busybox", "sh", "-c", "a b"],
            &["-c", "a b"],
            &["a b"],
        ] {
            assert_eq!(script(args).as_deref(), Some("a b"), "{args:?}");
        }
        for args in [
            &["bash", "run.sh", "-c", "a b"][..],
            &["python", "-c", "a b"],
            &["bash"],
            &[],
        ] {
            assert_eq!(script(args), None, "{args:?}");
        }
    }
}
