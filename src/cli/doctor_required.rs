//! What keeps pods that require exclusive CPUs from starting while no agent answers: the configuration of the container
//! runtime, as `pinfold doctor` reads it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the node does with a `required` pod while no agent answers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) is_good: bool,
    pub(super) text: String,
    pub(super) advice: Option<&'static str>,
}

const INSTALL: &str = "install it again (pinfold-runtime install, or required.wrapper=install of the chart), and restart the \
                       container runtime";

/// The finding about the node whose root directory is given; `None` where no configuration of a container runtime is visible, as
/// in the agent's own pod.
pub(super) fn examine(root: &Path) -> Option<Finding> {
    let texts: Vec<(PathBuf, String)> = files(root)
        .into_iter()
        .filter_map(|path| Some((path.clone(), fs::read_to_string(path).ok()?)))
        .collect();
    if texts.is_empty() {
        return None;
    }
    let has_plugin = texts.iter().any(|(_, text)| requires_plugin(text));
    let found = texts
        .iter()
        .find_map(|(path, text)| Some((path, program(text)?)));
    let Some((path, program)) = found else {
        let when = if has_plugin {
            "if the agent hangs or ends before its start (without the plugin, the runtime creates no container)"
        } else {
            "while no agent answers"
        };
        return Some(Finding {
            is_good: false,
            text: format!(
                "the runtime has no handler pinfold-required, so a pod with pinfold.io/cpus=required starts on shared CPUs {when}"
            ),
            advice: Some("where that matters, install pinfold-runtime (docs/guides/required.md)"),
        });
    };
    let on_node = root.join(program.trim_start_matches('/'));
    // Only this node's own programs can be tried.
    let runs = if root == Path::new("/") {
        version(&on_node)
    } else {
        on_node.exists().then(|| "the node's runtime".to_owned())
    };
    let plugin = if has_plugin {
        "; the runtime creates no container without the plugin pinfold"
    } else {
        ""
    };
    Some(match runs {
        Some(real) => Finding {
            is_good: true,
            // Nothing here shows whether the runtime reads this file, and has done so since the handler was added.
            text: format!(
                "pods of the RuntimeClass pinfold-required start behind {program}, which runs {real}, once the runtime has been \
                 restarted with /{}{plugin}",
                path.strip_prefix(root).unwrap_or(path).display()
            ),
            advice: None,
        },
        None => Finding {
            is_good: false,
            text: format!(
                "the runtime's handler pinfold-required names {program}, which does not run, so no pod of the RuntimeClass starts"
            ),
            advice: Some(INSTALL),
        },
    })
}

/// The configuration files of containerd and CRI-O, also those that others add to them.
fn files(root: &Path) -> Vec<PathBuf> {
    let mut files = vec![
        root.join("etc/containerd/config.toml"),
        root.join("etc/crio/crio.conf"),
    ];
    for folder in ["etc/containerd/conf.d", "etc/crio/crio.conf.d"] {
        let entries = fs::read_dir(root.join(folder)).into_iter().flatten();
        files.extend(entries.flatten().map(|entry| entry.path()));
    }
    files
}

/// The lines of a configuration, without comments.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
}

/// The program of the handler: containerd's `BinaryName`, CRI-O's `runtime_path`.
fn program(text: &str) -> Option<String> {
    let mut is_inside = false;
    for line in lines(text) {
        if line.starts_with('[') {
            is_inside = line.contains("runtimes.pinfold-required");
        }
        let value = line
            .split_once('=')
            .filter(|(key, _)| is_inside && matches!(key.trim(), "BinaryName" | "runtime_path"));
        if let Some((_, value)) = value {
            return Some(value.trim().trim_matches(['"', '\'']).to_owned());
        }
    }
    None
}

/// Whether NRI's validator refuses containers without the plugin.
fn requires_plugin(text: &str) -> bool {
    let mut named = lines(text).skip_while(|line| !line.contains("required_plugins"));
    let list = named.next().map(|first| {
        let rest = named.take_while(|line| !line.contains('=') && !line.starts_with('['));
        std::iter::once(first).chain(rest).collect::<String>()
    });
    list.is_some_and(|list| list.contains("pinfold"))
}

/// The first line that the program prints about the runtime behind it.
fn version(program: &Path) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let first = text.lines().next().filter(|line| !line.is_empty())?;
    output.status.success().then(|| first.to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn node(config: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("etc/containerd");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("config.toml"), config).unwrap();
        root
    }

    #[test]
    fn the_handler_is_found_and_its_program_looked_for() {
        assert_eq!(examine(tempfile::tempdir().unwrap().path()), None);
        let without = examine(node("version = 2\n").path()).unwrap();
        assert!(!without.is_good && without.text.ends_with("while no agent answers"));
        let plugin = examine(node("required_plugins = ['pinfold']\n").path()).unwrap();
        assert!(!plugin.is_good && plugin.text.contains("if the agent hangs"));
        let config = "[plugins.'x'.containerd.runtimes.pinfold-required]\nruntime_type = 'y'\n\
                      [plugins.'x'.containerd.runtimes.pinfold-required.options]\nBinaryName = '/opt/p/r'\n";
        let root = node(config);
        let missing = examine(root.path()).unwrap();
        assert!(
            !missing.is_good && missing.text.contains("/opt/p/r"),
            "{missing:?}"
        );
        fs::create_dir_all(root.path().join("opt/p")).unwrap();
        fs::write(root.path().join("opt/p/r"), "").unwrap();
        let good = examine(root.path()).unwrap();
        let until = "once the runtime has been restarted with /etc/containerd/config.toml";
        assert!(good.is_good && good.text.ends_with(until), "{good:?}");
    }

    #[test]
    fn both_runtimes_name_the_program_in_their_own_way() {
        let crio = "[crio.runtime.runtimes.runc]\nruntime_path = \"/usr/bin/runc\"\n\
                    [crio.runtime.runtimes.pinfold-required]\nruntime_path = \"/opt/r\" # own\n";
        assert_eq!(program(crio).as_deref(), Some("/opt/r"));
        assert_eq!(
            program("[a.runtimes.runc.options]\nBinaryName = 'x'\n"),
            None
        );
    }

    #[test]
    fn required_plugins_are_found_on_one_line_or_several() {
        assert!(requires_plugin("required_plugins = ['a', 'pinfold']\n"));
        assert!(requires_plugin(
            "nri_validator_required_plugins = [\n\t\"pinfold\",\n]\n"
        ));
        for text in [
            "",
            "required_plugins = []\nname = 'pinfold'\n",
            "# required_plugins = ['pinfold']\n",
        ] {
            assert!(!requires_plugin(text), "{text}");
        }
    }
}
