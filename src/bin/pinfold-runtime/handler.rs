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
    let text = without_handler(text);
    let own = handler_tables(&text)?;
    let plugin = if own.version == 2 {
        "io.containerd.grpc.v1.cri"
    } else {
        "io.containerd.cri.v1.runtime"
    };
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
pub(crate) fn without_handler(text: &str) -> String {
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

fn handler_tables(text: &str) -> Result<Found, String> {
    let lines = || {
        text.lines()
            .map(|line| line.split('#').next().unwrap_or_default().trim())
    };
    let value = |key: &'static str| {
        lines().filter_map(move |line| {
            line.strip_prefix(key)?
                .trim_start()
                .strip_prefix('=')
                .map(str::trim)
        })
    };
    if lines().any(|line| line.contains(HANDLER)) {
        return Err(format!("it has a handler {HANDLER} already: remove it"));
    }
    if value("plugins").next().is_some() {
        return Err(
            "its plugins are written as `plugins = …`, to which nothing can be added: write them as tables"
                .to_owned(),
        );
    }
    let version = match value("version").next().map(str::parse) {
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
    Ok(Found {
        version,
        has_runc: lines().any(|line| {
            line.starts_with('[')
                && (line.ends_with(".containerd.runtimes.runc]")
                    || line.ends_with(".containerd.runtimes.\"runc\"]"))
        }),
        systemd: value("SystemdCgroup").any(|value| value == "true"),
    })
}

/// The program that containerd runs instead of the first `runc` in its PATH, if the configuration names one.
pub(crate) fn binary_name(text: &str) -> Option<&str> {
    let text = text.split(BEGIN).next()?;
    let options = text.split(".runtimes.runc.options]").nth(1)?;
    let options = options.split("\n[").next()?;
    let value = options.lines().find_map(|line| {
        line.trim()
            .strip_prefix("BinaryName")?
            .trim_start()
            .strip_prefix('=')
    })?;
    let value = value.trim().trim_matches(['"', '\'']);
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
            assert_eq!(without_handler(&with), text);
            // Lines that others add below stay.
            assert_eq!(
                without_handler(&format!("{with}[debug]\n")),
                format!("{text}[debug]\n")
            );
        }
        assert_eq!(without_handler(TWO), TWO);
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
            ("version = 2\nplugins = {}\n", "tables"),
            (
                "version = 2\n[plugins.x.containerd.runtimes.pinfold-required]\n",
                "already",
            ),
        ] {
            let error = with_handler(text, BINARY).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn the_runtime_that_containerd_runs_is_found() {
        assert_eq!(binary_name(TWO), None);
        let named = format!("{TWO}BinaryName = \"/usr/bin/crun\"\n[debug]\nBinaryName = 'x'\n");
        assert_eq!(binary_name(&named), Some("/usr/bin/crun"));
        let with = with_handler(TWO, BINARY).unwrap();
        assert_eq!(binary_name(&with), None);
    }
}
