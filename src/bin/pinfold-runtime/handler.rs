//! The configuration of the handler `pinfold-required`, as text.
//!
//! containerd gets lines between two marks at the end of its configuration. A file of their own would be neater, but
//! containerd 1.7 replaces a plugin's whole section by that of an imported file: the default runtime and the sandbox's image
//! would be lost.

/// The names of the RuntimeClass and of the handler.
pub(crate) const HANDLER: &str = "pinfold-required";

const BEGIN: &str =
    "# Begin of pinfold-required. `pinfold-runtime uninstall` removes the lines up to the end.\n";
const END: &str = "# End of pinfold-required.\n";

/// The plugin with the runtimes: of version 2 of the configuration, and of later ones.
const PLUGINS: [&str; 2] = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"];

/// The beginning of CRI-O's file.
const OF_CRIO: &str =
    "# `pinfold-runtime install` wrote this file, and `pinfold-runtime uninstall` removes it.\n";

/// What containerd's configuration says about the runtimes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    version: u32,
    has_runc: bool,
    systemd: bool,
}

/// containerd's configuration with the handler, which runs the program `binary`. `text` is empty without a file.
///
/// # Errors
/// The configuration is of a kind to which lines can't be added, or has another handler of that name.
pub(crate) fn with_handler(text: &str, binary: &str) -> Result<String, String> {
    let text = without_marked(text);
    if runs(&text, binary) {
        return Ok(text);
    }
    let own = handler_tables(&text, binary)?;
    let plugin = PLUGINS[usize::from(own.version > 2)];
    let runtime = |name: &str| {
        format!(
            "[plugins.'{plugin}'.containerd.runtimes.{name}]\nruntime_type = 'io.containerd.runc.v2'\n"
        )
    };
    let version = if text.trim().is_empty() {
        "version = 2\n"
    } else {
        ""
    };
    // With any runtime in the file, containerd 1.7 forgets its default one.
    let runc = if own.version == 2 && !own.has_runc {
        runtime("runc")
    } else {
        String::new()
    };
    Ok(format!(
        "{text}\n{BEGIN}{version}{runc}{}[plugins.'{plugin}'.containerd.runtimes.{HANDLER}.options]\nBinaryName = \
         '{binary}'\nSystemdCgroup = {}\n{END}",
        runtime(HANDLER),
        own.systemd
    ))
}

/// The configuration as it was before [`with_handler`].
///
/// # Errors
/// The handler is there without the marks.
pub(crate) fn without_handler(text: &str) -> Result<String, String> {
    let text = without_marked(text);
    if names_handler(&text) {
        return Err(format!(
            "it has the handler {HANDLER} without the comments of `pinfold-runtime install`, as after another program has \
             rewritten the file: remove the tables of {HANDLER} by hand, and restart containerd"
        ));
    }
    Ok(text)
}

fn names_handler(text: &str) -> bool {
    uncommented(text).any(|line| line.contains(HANDLER))
}

/// Whether the handler is there and runs the program `binary`.
fn runs(text: &str, binary: &str) -> bool {
    let options = format!(".containerd.runtimes.{HANDLER}.options.BinaryName");
    lines(text)
        .filter(|line| line.path().ends_with(&options))
        .filter_map(|line| line.key)
        .any(|(_, value)| value.trim_matches(['"', '\'']) == binary)
}

fn without_marked(text: &str) -> String {
    let marked = text.find(BEGIN).and_then(|begin| {
        let end = begin + text[begin..].find(END)? + END.len();
        Some((begin, end))
    });
    let Some((begin, end)) = marked else {
        return text.to_owned();
    };
    let before = &text[..begin];
    format!(
        "{}{}",
        before.strip_suffix('\n').unwrap_or(before),
        &text[end..]
    )
}

/// A line of the configuration: the begin of a table, or a key with its value.
struct Line<'a> {
    /// The table's name, without quotes and blanks.
    table: String,
    key: Option<(String, &'a str)>,
}

// === impl Line ===

impl Line<'_> {
    /// The key with the names of its tables, or the table's own name.
    fn path(&self) -> String {
        match &self.key {
            Some((key, _)) if self.table.is_empty() => key.clone(),
            Some((key, _)) => format!("{}.{key}", self.table),
            None => self.table.clone(),
        }
    }
}

/// The tables and keys of a configuration in TOML, one for each line.
fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    let plain = |name: &str| name.replace(['"', '\'', ' ', '\t'], "");
    let mut table = String::new();
    uncommented(text).filter_map(move |line| {
        let key = if line.starts_with('[') {
            table = plain(line.trim_matches(['[', ']']));
            None
        } else {
            let (key, value) = line.split_once('=')?;
            Some((plain(key), value.trim()))
        };
        let table = table.clone();
        Some(Line { table, key })
    })
}

fn uncommented(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(|line| {
        let mut quote = None;
        let comment = line.char_indices().find(|&(_, c)| match quote {
            None if c == '#' => true,
            None => {
                quote = matches!(c, '"' | '\'').then_some(c);
                false
            }
            Some(open) => {
                quote = (c != open).then_some(open);
                false
            }
        });
        line[..comment.map_or(line.len(), |(at, _)| at)].trim()
    })
}

fn handler_tables(text: &str, binary: &str) -> Result<Found, String> {
    let value = |key: &str| {
        let found = lines(text).find(|line| line.path() == key);
        found.and_then(|line| line.key).map(|(_, value)| value)
    };
    if names_handler(text) {
        return Err(format!(
            "it has a handler {HANDLER} already, which does not run {binary}: remove its tables by hand, and install again"
        ));
    }
    let version = match value("version").map(str::parse) {
        None if text.trim().is_empty() => 2,
        Some(Ok(version)) if version >= 2 => version,
        _ => {
            return Err(
                "it has no `version = 2` or later, as the files of old versions of containerd: update it \
                 (containerd config migrate)"
                    .to_owned(),
            );
        }
    };
    if let Some(path) = lines(text).find_map(|line| closed(&line)) {
        return Err(format!(
            "it has `{path} = …`, beside which containerd allows no table for the handler: write it as a table"
        ));
    }
    Ok(Found {
        version,
        has_runc: lines(text)
            .any(|line| line.key.is_none() && line.table.ends_with(".containerd.runtimes.runc")),
        systemd: lines(text).any(|line| {
            let is_systemd =
                |(key, value): (String, &str)| key.ends_with("SystemdCgroup") && value == "true";
            line.key.is_some_and(is_systemd)
        }),
    })
}

/// The path of a line that defines a runtime's table, or one above it, without a header. A header further down would define the
/// table again, which TOML forbids.
fn closed(line: &Line) -> Option<String> {
    let (key, value) = line.key.as_ref()?;
    let is_runtime = key.split('.').any(|name| name == "runtimes")
        || line.table.ends_with(".containerd.runtimes") && key.split('.').next() == Some("runc")
        || line.table.ends_with(".containerd.runtimes.runc") && key == "options";
    let path = line.path();
    let is_above = value.starts_with('{')
        && PLUGINS
            .iter()
            .any(|plugin| format!("plugins.{plugin}.containerd.").starts_with(&format!("{path}.")));
    (is_runtime || is_above).then_some(path)
}

/// The files that the configuration adds to itself, as patterns. The list may go over several lines.
pub(crate) fn imports(text: &str) -> Vec<String> {
    let is_list = |line: &&str| {
        let key = line.split_once('=').map(|(key, _)| key);
        key.is_some_and(|key| key.trim().trim_matches(['"', '\'']) == "imports")
    };
    let from_list = uncommented(text)
        .take_while(|line| !line.starts_with('['))
        .skip_while(|line| !is_list(line));
    let mut list = String::new();
    for line in from_list {
        list.push_str(line);
        if line.ends_with(']') {
            break;
        }
    }
    let patterns = list.split_once('=').map_or("", |(_, patterns)| patterns);
    patterns
        .trim()
        .trim_matches(['[', ']'])
        .split(',')
        .map(|pattern| pattern.trim().trim_matches(['"', '\'']).to_owned())
        .filter(|pattern| !pattern.is_empty())
        .collect()
}

/// The program that containerd runs instead of the first `runc` in its PATH, if the configuration names one.
pub(crate) fn binary_name(text: &str) -> Option<&str> {
    let options = ".containerd.runtimes.runc.options.BinaryName";
    let line = lines(text).find(|line| line.path().ends_with(options))?;
    let value = line.key?.1.trim_matches(['"', '\'']);
    (!value.is_empty()).then_some(value)
}

/// CRI-O's file with the handler, in place of `text`.
///
/// # Errors
/// `text` is somebody else's.
pub(crate) fn of_crio(text: &str, binary: &str) -> Result<String, String> {
    without_crio(text)?;
    Ok(format!(
        "{OF_CRIO}[crio.runtime.runtimes.{HANDLER}]\nruntime_path = \"{binary}\"\nruntime_type = \"oci\"\n"
    ))
}

/// CRI-O's file without the handler. Nothing is left of it, because the handler has a file of its own.
///
/// # Errors
/// `text` is somebody else's.
pub(crate) fn without_crio(text: &str) -> Result<String, String> {
    if text.is_empty() || text.starts_with(OF_CRIO) {
        return Ok(String::new());
    }
    Err(
        "it has settings that pinfold-runtime did not write, and for CRI-O the file is replaced as a whole: name a file \
         of its own in /etc/crio/crio.conf.d (--config, or required.config of the chart)"
            .to_owned(),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const BINARY: &str = "/opt/pinfold/pinfold-runtime";

    const TWO: &str = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n\
                       runtime_type = \"io.containerd.runc.v2\"\n\
                       [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n\
                       SystemdCgroup = true # the kubelet's driver\n";

    #[test]
    fn the_handler_is_added_once_and_removed_without_a_trace() {
        for text in [
            "",
            TWO,
            TWO.trim_end(),
            "version = 3\n",
            "# nothing\nversion=3",
            "version = 2\n\n",
        ] {
            let with = with_handler(text, BINARY).unwrap();
            assert!(with.contains(&format!("BinaryName = '{BINARY}'")), "{with}");
            assert_eq!(with_handler(&with, BINARY).unwrap(), with);
            assert_eq!(without_handler(&with).unwrap(), text);
            // Lines that others add below stay.
            assert_eq!(
                without_handler(&format!("{with}[debug]\n")).unwrap(),
                format!("{text}[debug]\n")
            );
        }
        assert_eq!(without_handler(TWO).unwrap(), TWO);
    }

    /// A program that reads the file and writes it anew loses the comments.
    #[test]
    fn a_handler_without_its_marks_is_known() {
        let with = with_handler(TWO, BINARY).unwrap().replace('\'', "\"");
        let rewritten: String = with
            .lines()
            .filter(|line| !line.starts_with('#'))
            .fold(String::new(), |text, line| text + "  " + line + "\n");
        assert_eq!(with_handler(&rewritten, BINARY).unwrap(), rewritten);
        let error = with_handler(&rewritten, "/other/pinfold-runtime").unwrap_err();
        assert!(
            error.contains("does not run /other/pinfold-runtime"),
            "{error}"
        );
        let error = without_handler(&rewritten).unwrap_err();
        assert!(error.contains("remove the tables"), "{error}");
    }

    #[test]
    fn the_handler_follows_the_versions_and_the_driver() {
        let of_two = with_handler(TWO, BINARY).unwrap();
        assert!(
            of_two.contains("'io.containerd.grpc.v1.cri'.containerd.runtimes.pinfold-required]")
        );
        assert!(of_two.contains("SystemdCgroup = true\n# End"), "{of_two}");
        assert!(!of_two.contains("'.containerd.runtimes.runc]"), "{of_two}");
        let empty = with_handler("", BINARY).unwrap();
        assert!(empty.contains(
            "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]"
        ));
        let of_three = with_handler("version = 3\n", BINARY).unwrap();
        assert!(
            of_three
                .contains("'io.containerd.cri.v1.runtime'.containerd.runtimes.pinfold-required]")
        );
        assert!(of_three.contains("SystemdCgroup = false") && !of_three.contains("runtimes.runc]"));
    }

    #[test]
    fn files_that_can_t_be_added_to_are_refused() {
        for (text, says) in [
            ("root = '/r'\n", "version = 2"),
            ("version = 1\n", "version = 2"),
            ("version = two\n", "version = 2"),
            ("version = 2\nplugins = {}\n", "as a table"),
            (
                "version = 2\n[plugins.x.containerd.runtimes.pinfold-required]\n",
                "already",
            ),
        ] {
            let error = with_handler(text, BINARY).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    /// A second table of the same name would keep containerd from starting.
    #[test]
    fn no_table_is_defined_twice() {
        let plugin = "plugins.'io.containerd.grpc.v1.cri'";
        for table in [
            "runtimes.'runc'",
            "runtimes.\"runc\"",
            "runtimes . runc ",
            "'runtimes'.runc",
        ] {
            let text = format!("version = 2\n  [ {plugin}.containerd.{table}] # own\n");
            let with = with_handler(&text, BINARY).unwrap();
            assert!(!with.contains("'.containerd.runtimes.runc]"), "{with}");
        }
        for lines in [
            "[plugins.'io.containerd.grpc.v1.cri']\ncontainerd.runtimes.runc.runtime_type = 'x'",
            "[plugins.'io.containerd.grpc.v1.cri'.containerd]\n'runtimes'.runc.runtime_type = 'x'",
            "[plugins.'io.containerd.grpc.v1.cri'.containerd]\nruntimes = { runc = {} }",
            "[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes]\n\"runc\" = {}",
            "[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]\noptions = {}",
            "[plugins.'io.containerd.grpc.v1.cri']\ncontainerd = { snapshotter = 'x' }",
            "[plugins]\n'io.containerd.grpc.v1.cri' = { containerd = {} }",
        ] {
            let error = with_handler(&format!("version = 2\n{lines}\n"), BINARY).unwrap_err();
            assert!(error.contains("as a table"), "{lines}: {error}");
        }
        let harmless = "version = 2\nroot = '/x/runtimes.d' # runtimes.a = 1\n[plugins.'io.containerd.grpc.v1.cri']\n\
                        containerd.snapshotter = 'x'\nregistry = {}\n";
        assert!(with_handler(harmless, BINARY).is_ok());
    }

    #[test]
    fn imported_files_are_found() {
        for text in [
            "",
            TWO,
            "imports = []\n",
            "# imports = ['a']\n",
            "imports = [\n]\n[x]\ny = ['z']\n",
        ] {
            assert_eq!(imports(text), [""; 0], "{text}");
        }
        for text in [
            "version = 2\nimports = ['/a/*.toml', \"b.toml\"] # more\n",
            "imports=[\n  '/a/*.toml', # one\n  'b.toml',\n]\nroot = 'c'\n",
        ] {
            assert_eq!(imports(text), ["/a/*.toml", "b.toml"], "{text}");
        }
    }

    #[test]
    fn the_runtime_that_containerd_runs_is_found() {
        assert_eq!(binary_name(TWO), None);
        // Other runtimes have programs of their own, in tables that may be indented.
        let other = "  [plugins.x.containerd.runtimes.nvidia.options]\n    BinaryName = '/usr/bin/nvidia'\n";
        assert_eq!(binary_name(&format!("{TWO}{other}")), None);
        let commented =
            format!("{TWO}# BinaryName = '/x'\n  BinaryName = \"/usr/bin/crun\" # why\n{other}");
        assert_eq!(binary_name(&commented), Some("/usr/bin/crun"));
        assert_eq!(
            binary_name("[a.containerd.runtimes.'runc'.options]\nBinaryName = '/a#b'\n"),
            Some("/a#b")
        );
        let named = format!("{TWO}BinaryName = \"/usr/bin/crun\"\n[debug]\nBinaryName = 'x'\n");
        assert_eq!(binary_name(&named), Some("/usr/bin/crun"));
        let with = with_handler(TWO, BINARY).unwrap();
        assert_eq!(binary_name(&with), None);
    }
}
