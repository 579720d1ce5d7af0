//! `kubectl label` commands as people type them into a shell.

use super::ImportError;

/// One `kubectl label` of nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Labelling {
    /// The line on which it starts.
    pub(super) line: usize,
    pub(super) nodes: Vec<String>,
    pub(super) changes: Vec<Change>,
    pub(super) overwrite: bool,
}

/// What is done to one label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    Set(String, String),
    Remove(String),
}

/// Why a command labels no node.
pub(super) enum Fault {
    /// Something has to be corrected.
    Error(ImportError),
    /// It does something else, or nothing.
    Note(ImportError),
}

/// A word of a command.
struct Word {
    text: String,
    /// Whether a shell would have put something else in its place.
    variable: bool,
}

/// kubectl's flags that take the next word, if no value is joined to them.
const WITH_VALUE: [&str; 31] = [
    "-n",
    "--namespace",
    "--context",
    "--kubeconfig",
    "--cluster",
    "--user",
    "-s",
    "--server",
    "--token",
    "--as",
    "--as-group",
    "--as-uid",
    "--request-timeout",
    "-v",
    "--v",
    "--field-manager",
    "--resource-version",
    "-o",
    "--output",
    "-l",
    "--selector",
    "--field-selector",
    "-f",
    "--filename",
    "-k",
    "--kustomize",
    "--template",
    "--cache-dir",
    "--certificate-authority",
    "--client-certificate",
    "--client-key",
];

/// The commands of a text, in order; `None` for a command that is empty.
pub(super) fn commands(text: &str) -> impl Iterator<Item = Result<Option<Labelling>, Fault>> {
    split(text).into_iter().map(|read| match read {
        Ok((line, words)) => command(line, &words),
        Err(error) => Err(Fault::Error(error)),
    })
}

/// A text's commands as words, each with its first line. Quotes, backslashes, comments and separators are the shell's.
fn split(text: &str) -> Vec<Result<(usize, Vec<Word>), ImportError>> {
    let mut found = Vec::new();
    let mut words: Vec<Word> = Vec::new();
    let mut word: Option<Word> = None;
    let (mut line, mut first) = (1, 1);
    let mut letters = text.chars().filter(|&letter| letter != '\r').peekable();
    while let Some(letter) = letters.next() {
        if words.is_empty() && word.is_none() {
            first = line;
        }
        match letter {
            '\\' => match letters.next() {
                // A continued line.
                Some('\n') => line += 1,
                Some(other) => word.get_or_insert_with(Word::new).text.push(other),
                None => {}
            },
            '\'' | '"' => {
                let start = line;
                let here = word.get_or_insert_with(Word::new);
                loop {
                    match letters.next() {
                        Some(end) if end == letter => break,
                        Some('\\') if letter == '"' => here.text.extend(letters.next()),
                        Some(other) => {
                            line += usize::from(other == '\n');
                            here.variable |= letter == '"' && matches!(other, '$' | '`');
                            here.text.push(other);
                        }
                        None => {
                            let what = format!("the quote {letter} is not closed");
                            found.push(Err(ImportError {
                                line: start,
                                text: what,
                            }));
                            return found;
                        }
                    }
                }
            }
            '#' if word.is_none() => while letters.next_if(|&next| next != '\n').is_some() {},
            '\n' | ';' | '&' | '|' => {
                words.extend(word.take());
                found.push(Ok((first, std::mem::take(&mut words))));
                line += usize::from(letter == '\n');
            }
            letter if letter.is_whitespace() => words.extend(word.take()),
            letter => {
                let here = word.get_or_insert_with(Word::new);
                here.variable |= matches!(letter, '$' | '`');
                here.text.push(letter);
            }
        }
    }
    words.extend(word.take());
    found.push(Ok((first, words)));
    found
}

fn command(line: usize, words: &[Word]) -> Result<Option<Labelling>, Fault> {
    let error = |text: String| Err(Fault::Error(ImportError::new(line, text)));
    let note = |text: String| Err(Fault::Note(ImportError::new(line, text)));
    // A prompt that was copied with the command, sudo, a loop's body, and variables that are set for one command.
    let before = |word: &&Word| {
        matches!(word.text.as_str(), "$" | "sudo" | "do" | "then") || assignment(&word.text)
    };
    let mut words = words.iter().skip_while(before);
    let Some(program) = words.next() else {
        return Ok(None);
    };
    match program.text.as_str() {
        "done" | "fi" => return Ok(None),
        "for" | "while" | "until" | "if" => {
            return error(format!(
                "{} is the shell's: write out the commands that it runs",
                program.text
            ));
        }
        _ => {}
    }
    if !matches!(
        program.text.rsplit('/').next(),
        Some("kubectl" | "oc" | "k")
    ) {
        return error(format!(
            "{:?} is no kubectl command: write kubectl label node NAME SCENCE=1 CASE=1 INDEX=0",
            program.text
        ));
    }
    let mut plain = Vec::new();
    let (mut overwrite, mut dry, mut chosen) = (false, false, None);
    while let Some(word) = words.next() {
        let flag = word.text.as_str();
        let (name, value) = flag
            .split_once('=')
            .map_or((flag, None), |(name, value)| (name, Some(value)));
        if word.variable {
            return error(format!(
                "{flag} is filled in by a shell: write the commands with what it stands for"
            ));
        }
        if !flag.starts_with('-') || flag == "-" {
            plain.push(flag);
            continue;
        }
        match name {
            "--overwrite" => overwrite = value != Some("false"),
            "--dry-run" => dry = value != Some("none"),
            "--list" | "--local" => dry = value != Some("false"),
            "--all" | "-l" | "--selector" | "--field-selector" => chosen = Some(name),
            "-f" | "--filename" | "-k" | "--kustomize" => chosen = Some(name),
            _ => {}
        }
        if value.is_none() && WITH_VALUE.contains(&name) {
            words.next();
        }
    }
    let mut plain = plain.into_iter();
    match plain.next() {
        Some("label") => {}
        Some(other) => return note(format!("kubectl {other} labels nothing, and is left out")),
        None => return note("a kubectl without a command is left out".to_owned()),
    }
    if dry {
        return note(
            "with --dry-run, --list or --local it changes nothing, and is left out".to_owned(),
        );
    }
    let (mut resources, mut changes) = (Vec::new(), Vec::new());
    for word in plain {
        if word.starts_with('=') {
            return error(format!("{word:?} is no label: leave no space around ="));
        }
        let removal = word.strip_suffix('-').filter(|key| !key.is_empty());
        match (word.split_once('='), removal) {
            (Some((key, value)), _) if !key.is_empty() => {
                changes.push(Change::Set(key.to_owned(), value.to_owned()));
            }
            (None, Some(key)) => changes.push(Change::Remove(key.to_owned())),
            _ if changes.is_empty() => resources.push(word),
            _ => {
                return error(format!(
                    "{word:?} stands behind the labels: name all nodes first, and leave no space around ="
                ));
            }
        }
    }
    let nodes = match nodes(&resources) {
        Ok(nodes) => nodes,
        Err(Some(other)) => return note(format!("it labels {other}, no nodes, and is left out")),
        Err(None) => {
            return error(format!(
                "{} mixes nodes with other things: name nodes only",
                resources.join(" ")
            ));
        }
    };
    if let Some(chosen) = chosen {
        return error(format!(
            "{chosen} doesn't say which nodes: write their names"
        ));
    }
    if nodes.is_empty() {
        return error("it names no node: write kubectl label node NAME KEY=VALUE".to_owned());
    }
    if changes.is_empty() {
        return error("it names no label: write KEY=VALUE, or KEY- to remove one".to_owned());
    }
    Ok(Some(Labelling {
        line,
        nodes,
        changes,
        overwrite,
    }))
}

/// The nodes that these words name: `node a b`, or `node/a no/b`. Else the other kind that is meant, or nothing where
/// kinds are mixed.
fn nodes(words: &[&str]) -> Result<Vec<String>, Option<String>> {
    let is_node =
        |kind: &str| matches!(kind.to_ascii_lowercase().as_str(), "no" | "node" | "nodes");
    let Some(first) = words.first() else {
        return Ok(Vec::new());
    };
    if !words.iter().any(|word| word.contains('/')) {
        return if is_node(first) {
            Ok(words.iter().skip(1).map(|&name| name.to_owned()).collect())
        } else {
            Err(Some((*first).to_owned()))
        };
    }
    let pairs: Vec<Option<(&str, &str)>> = words.iter().map(|word| word.split_once('/')).collect();
    let named = pairs.iter().map(|pair| {
        pair.filter(|(kind, _)| is_node(kind))
            .map(|(_, name)| name.to_owned())
    });
    match named.collect::<Option<Vec<String>>>() {
        Some(names) => Ok(names),
        None if pairs.iter().flatten().any(|(kind, _)| is_node(kind)) || is_node(first) => {
            Err(None)
        }
        None => Err(Some((*first).to_owned())),
    }
}

/// `KUBECONFIG=file` before a command.
fn assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty()
            && name
                .chars()
                .all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    })
}

// === impl Word ===

impl Word {
    fn new() -> Self {
        Self {
            text: String::new(),
            variable: false,
        }
    }
}

// === impl Change ===

impl Change {
    pub(super) fn set(&self) -> Option<&str> {
        match self {
            Self::Set(key, _) => Some(key),
            Self::Remove(_) => None,
        }
    }

    pub(super) fn removed(&self) -> Option<&str> {
        match self {
            Self::Remove(key) => Some(key),
            Self::Set(..) => None,
        }
    }
}
