//! The command lines of a shell script, as far as the examples of the documentation need one.

/// Words before a command that are not the command.
const PREFIXES: [&str; 10] = [
    "sudo", "env", "time", "exec", "do", "then", "else", "if", "while", "!",
];

/// The arguments of each `pinfold` command line of a script, also behind `cargo run … --` and `kubectl exec … --`.
pub(crate) fn pinfold_arguments(script: &str) -> Vec<Vec<String>> {
    let mut lines = Vec::new();
    for words in commands(&without_here_documents(script)) {
        let name = words.iter().position(|word| !is_prefix(word));
        let words = &words[name.unwrap_or(words.len())..];
        let Some(first) = words.first() else { continue };
        let rest = words.iter().position(|word| word == "--");
        let behind = rest.map_or(&[][..], |at| &words[at + 1..]);
        if is_pinfold(first) {
            lines.push(words[1..].to_vec());
        } else if first == "cargo" && words.get(1).is_some_and(|word| word == "run") {
            lines.push(behind.to_vec());
        } else if behind.first().is_some_and(|word| is_pinfold(word)) {
            lines.push(behind[1..].to_vec());
        }
    }
    lines
}

fn is_pinfold(word: &str) -> bool {
    word == "pinfold" || word.ends_with("/pinfold")
}

/// Whether a word is a variable's assignment, or a word like `sudo`.
fn is_prefix(word: &str) -> bool {
    let assigns = word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    });
    assigns || PREFIXES.contains(&word)
}

/// The script without the bodies of here-documents.
fn without_here_documents(script: &str) -> String {
    let mut kept = String::new();
    let mut end: Option<String> = None;
    for line in script.lines() {
        if let Some(word) = &end {
            if line.trim() == word {
                end = None;
            }
            continue;
        }
        end = line.split_once("<<").and_then(|(_, rest)| {
            let word = rest
                .trim_start_matches(['-', ' '])
                .split([' ', '>', '|'])
                .next();
            word.map(|word| word.trim_matches(['\'', '"']).to_owned())
        });
        kept.push_str(line);
        kept.push('\n');
    }
    kept
}

/// The words of each simple command. Quotes, comments, redirections and continued lines are resolved. A command
/// substitution counts as a command of its own.
fn commands(script: &str) -> Vec<Vec<String>> {
    let mut reader = Reader::default();
    let mut chars = script.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('\n') | None => {}
                Some(next) => reader.push(next),
            },
            '\'' | '"' => {
                reader.begin();
                while let Some(inner) = chars.next() {
                    match inner {
                        _ if inner == c => break,
                        '\\' if c == '"' => reader.push(chars.next().unwrap_or('\\')),
                        _ => reader.push(inner),
                    }
                }
            }
            '#' if reader.word.is_none() => while chars.next_if(|next| *next != '\n').is_some() {},
            '>' | '<' => {
                while chars.next_if(|next| "><&-".contains(*next)).is_some() {}
                reader.redirect();
            }
            '\n' | ';' | '|' | '&' | '(' | ')' | '`' => reader.end_command(),
            _ if c.is_whitespace() => reader.end_word(),
            _ => reader.push(c),
        }
    }
    reader.end_command();
    reader.commands
}

/// The commands that were read, and the present command.
#[derive(Default)]
struct Reader {
    commands: Vec<Vec<String>>,
    words: Vec<String>,
    word: Option<String>,
    /// Whether the next word is the file of a redirection.
    is_file: bool,
}

// === impl Reader ===

impl Reader {
    fn begin(&mut self) {
        self.word.get_or_insert_with(String::new);
    }

    fn push(&mut self, c: char) {
        self.word.get_or_insert_with(String::new).push(c);
    }

    /// Begins a redirection. A number before the operator is a file descriptor.
    fn redirect(&mut self) {
        let number = |word: &String| word.chars().all(|c| c.is_ascii_digit());
        if self.word.as_ref().is_some_and(number) {
            self.word = None;
        }
        self.end_word();
        self.is_file = true;
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        if self.is_file {
            self.is_file = false;
        } else {
            self.words.push(word);
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.is_file = false;
        if !self.words.is_empty() {
            self.commands.push(std::mem::take(&mut self.words));
        }
    }
}

#[test]
fn command_lines_are_found() {
    let script = "# pinfold comment\nsudo pinfold run --pods 'a b' \\\n  --reserved 0-1 2>/dev/null &\n\
                  X=1 pinfold scene crd | kubectl apply -f -   # pinfold no\n\
                  kubectl exec ds/pinfold -n pinfold -- pinfold doctor && cargo run --release -- demo\n\
                  kubectl apply -f - <<'EOF'\nit's: pinfold\nEOF\n./target/release/pinfold config > \"/etc/pin fold.yaml\"\n";
    let lines = pinfold_arguments(script);
    let expected: [&[&str]; 5] = [
        &["run", "--pods", "a b", "--reserved", "0-1"],
        &["scene", "crd"],
        &["doctor"],
        &["demo"],
        &["config"],
    ];
    assert_eq!(lines, expected);
}
