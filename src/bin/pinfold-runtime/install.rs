//! `pinfold-runtime install` and `uninstall`: the program on the host, and the handler in the runtime's configuration.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use crate::{handler, real};

const USAGE: &str = "\
Usage: pinfold-runtime install|uninstall [OPTION]…

Puts this program on the host as the OCI runtime of the RuntimeClass pinfold-required, or removes
the handler from the configuration again. With any other arguments, the program is that runtime.

  --runtime NAME   containerd (the default) or crio
  --config FILE    the file to change; for containerd /etc/containerd/config.toml, for CRI-O a file
                   of its own, /etc/crio/crio.conf.d/99-pinfold-required.conf
  --folder DIR     the program's folder on the host (default: /opt/pinfold)
  --real FILE      the node's OCI runtime (default: what containerd's configuration names for runc,
                   else the first runc, else the first crun in the PATH of the container runtime)
  --host DIR       where the host's root directory is (default: /)
  --stay           wait for a signal afterwards, as the container of a DaemonSet does
";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runtime {
    Containerd,
    Crio,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Settings {
    runtime: Runtime,
    config: Option<PathBuf>,
    folder: PathBuf,
    real: Option<PathBuf>,
    host: PathBuf,
    stay: bool,
}

/// Carries out `install` or `uninstall`; `None` for any other arguments.
pub(crate) fn run(arguments: &[OsString]) -> Option<ExitCode> {
    let (command, options) = arguments.split_first()?;
    let act = match command.to_str()? {
        "install" => Settings::install,
        "uninstall" => Settings::uninstall,
        _ => return None,
    };
    if options.iter().any(|option| option == "--help") {
        let _ = write!(io::stdout(), "{USAGE}");
        return Some(ExitCode::SUCCESS);
    }
    let fail = |why: &str, code: u8| {
        let _ = writeln!(io::stderr(), "pinfold-runtime: {why}");
        ExitCode::from(code)
    };
    let settings = match Settings::parse(options) {
        Ok(settings) => settings,
        Err(why) => return Some(fail(&format!("{why}\n\n{USAGE}"), 2)),
    };
    let done = match act(&settings) {
        Ok(done) => done,
        Err(why) => return Some(fail(&why, 2)),
    };
    let _ = writeln!(io::stdout(), "{done}");
    // Kubernetes would start a container again that ends.
    if settings.stay {
        loop {
            std::thread::park();
        }
    }
    Some(ExitCode::SUCCESS)
}

// === impl Settings ===

impl Settings {
    fn parse(options: &[OsString]) -> Result<Self, String> {
        let mut settings = Self {
            runtime: Runtime::Containerd,
            config: None,
            folder: "/opt/pinfold".into(),
            real: None,
            host: "/".into(),
            stay: false,
        };
        let mut options = options.iter();
        while let Some(option) = options.next() {
            let Some(option) = option.to_str() else {
                return Err(format!("the option {option:?} is no text"));
            };
            if option == "--stay" {
                settings.stay = true;
                continue;
            }
            // Both forms are usual: `--host DIR` and `--host=DIR`.
            let (name, inline) = option
                .split_once('=')
                .map_or((option, None), |(name, value)| (name, Some(value)));
            let mut value = || {
                let separate = || options.next().and_then(|value| value.to_str());
                let value = inline.or_else(separate).filter(|value| !value.is_empty());
                value.ok_or_else(|| format!("{name} needs a value"))
            };
            let mut absolute = || {
                let path = value()?;
                // The path becomes a text in the runtime's configuration.
                let is_plain = path.starts_with('/')
                    && !path.contains(['\'', '"', '\\'])
                    && !path.contains(char::is_control);
                if is_plain {
                    Ok(PathBuf::from(path))
                } else {
                    Err(format!(
                        "{name} wants an absolute path without quotes, not {path:?}"
                    ))
                }
            };
            match name {
                "--runtime" => {
                    settings.runtime = match value()? {
                        "containerd" => Runtime::Containerd,
                        "crio" => Runtime::Crio,
                        _ => return Err("--runtime is containerd or crio".to_owned()),
                    }
                }
                "--config" => settings.config = Some(absolute()?),
                "--folder" => settings.folder = absolute()?,
                "--real" => settings.real = Some(absolute()?),
                "--host" => settings.host = absolute()?,
                _ => return Err(format!("unknown option {name}")),
            }
        }
        Ok(settings)
    }

    /// A path of the host, as this program sees it.
    fn on_host(&self, path: &Path) -> PathBuf {
        self.host.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The configuration file, as the host names it.
    fn config(&self) -> &Path {
        let usual = match self.runtime {
            Runtime::Containerd => "/etc/containerd/config.toml",
            Runtime::Crio => "/etc/crio/crio.conf.d/99-pinfold-required.conf",
        };
        self.config.as_deref().unwrap_or(Path::new(usual))
    }

    fn binary(&self) -> PathBuf {
        self.folder.join("pinfold-runtime")
    }

    /// The configuration before and after `change`. A missing file is an empty one.
    fn planned(
        &self,
        change: impl Fn(&str) -> Result<String, String>,
    ) -> Result<(String, String), String> {
        let (named, path) = (self.config(), self.on_host(self.config()));
        if fs::symlink_metadata(&path).is_ok_and(|file| file.is_symlink()) {
            return Err(format!(
                "{} is a symbolic link, so something else makes it: add the handler there (docs/guides/required.md)",
                named.display()
            ));
        }
        let before = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(format!("can't read {}: {error}", named.display())),
        };
        let after = change(&before).map_err(|why| format!("{}: {why}", named.display()))?;
        Ok((before, after))
    }

    /// Writes the configuration, and returns whether it has changed.
    fn write(&self, (before, after): &(String, String)) -> Result<bool, String> {
        let (named, path) = (self.config(), self.on_host(self.config()));
        if before == after {
            return Ok(false);
        }
        let written = if after.is_empty() {
            fs::remove_file(&path)
        } else {
            let mode = fs::metadata(&path).map_or(0o644, |file| file.permissions().mode());
            replace(&path, after.as_bytes(), mode)
        };
        written
            .map(|()| true)
            .map_err(|error| format!("can't write {}: {error}", named.display()))
    }

    fn install(&self) -> Result<String, String> {
        let (named, path) = (self.binary(), self.on_host(&self.binary()));
        let binary = named.display().to_string();
        let planned = self.planned(|text| match self.runtime {
            Runtime::Containerd => {
                self.check_imports(text)?;
                handler::with_handler(text, &binary)
            }
            Runtime::Crio => handler::of_crio(text, &binary),
        })?;
        let failed =
            |error: io::Error| format!("can't put the program at {}: {error}", named.display());
        let own = fs::read("/proc/self/exe").map_err(failed)?;
        // The link comes first: once the handler is there, the program has to find the real runtime.
        fs::create_dir_all(self.on_host(&self.folder)).map_err(failed)?;
        self.link()?;
        if fs::read(&path).ok().as_ref() != Some(&own) {
            replace(&path, &own, 0o755).map_err(failed)?;
        }
        let changed = self.write(&planned)?;
        let config = self.config().display();
        Ok(if changed {
            format!(
                "{config} has the handler {}. {} to make it known",
                handler::HANDLER,
                self.restart()
            )
        } else {
            format!("{config} had the handler {} already", handler::HANDLER)
        })
    }

    /// Refuses imported files, because they may replace the handler's tables or say more about runc. Folders without files are
    /// accepted: containerd's own default imports one.
    fn check_imports(&self, text: &str) -> Result<(), String> {
        let folder = self.config().parent().unwrap_or(Path::new("/"));
        // The container of a DaemonSet sees only the configuration's folder.
        let is_empty = |pattern: &PathBuf| {
            let of_pattern = pattern.parent().filter(|path| path.starts_with(folder));
            of_pattern.is_some_and(|path| {
                pattern.ends_with("*.toml")
                    && !path.to_string_lossy().contains(['*', '?', '['])
                    && !path.components().any(|name| name == Component::ParentDir)
                    && has_no_toml(&self.on_host(path))
            })
        };
        let mut patterns = handler::imports(text)
            .into_iter()
            .map(|path| folder.join(path));
        patterns.find(|pattern| !is_empty(pattern)).map_or(Ok(()), |pattern| {
            Err(format!(
                "it imports {}, which may change the runtimes: add the handler by hand, as the section \"Nodes whose image \
                 can't change\" of docs/guides/required.md shows",
                pattern.display()
            ))
        })
    }

    /// Points the link to the real runtime, where it is not the first one in the PATH. Otherwise an earlier link goes.
    fn link(&self) -> Result<(), String> {
        let text = fs::read_to_string(self.on_host(self.config())).unwrap_or_default();
        let configured = handler::binary_name(&text)
            .filter(|_| self.runtime == Runtime::Containerd)
            .map(PathBuf::from);
        let link = self.on_host(&self.folder.join(real::LINK));
        let Some(target) = self.real.clone().or(configured) else {
            return match fs::remove_file(&link) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(format!(
                    "can't remove the earlier link {}: {error}. Remove it by hand",
                    link.display()
                )),
                _ => Ok(()),
            };
        };
        if !target.is_absolute() {
            return Err(format!(
                "{} names the runtime {} without its folder: name it with --real",
                self.config().display(),
                target.display()
            ));
        }
        if fs::read_link(&link).is_ok_and(|now| now == target) {
            return Ok(());
        }
        let beside = link.with_extension("new");
        let _ = fs::remove_file(&beside);
        symlink(&target, &beside)
            .and_then(|()| fs::rename(&beside, &link))
            .map_err(|error| format!("can't make the link {}: {error}", link.display()))
    }

    fn uninstall(&self) -> Result<String, String> {
        let planned = self.planned(|text| match self.runtime {
            Runtime::Containerd => handler::without_handler(text),
            Runtime::Crio => handler::without_crio(text),
        })?;
        let changed = self.write(&planned)?;
        let config = self.config().display();
        let folder = self.folder.display();
        Ok(if changed {
            format!(
                "{config} is as it was before. {}. Containers of the class need {folder} until they have ended; remove it then",
                self.restart()
            )
        } else {
            format!("{config} has no handler {}", handler::HANDLER)
        })
    }

    fn restart(&self) -> &'static str {
        match self.runtime {
            Runtime::Containerd => "Restart containerd (systemctl restart containerd)",
            Runtime::Crio => "Reload CRI-O (systemctl reload crio)",
        }
    }
}

/// A symbolic link may lead to a folder that only the host has.
fn has_no_toml(folder: &Path) -> bool {
    let is_toml = |entry: io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.path().extension().is_some_and(|end| end == "toml"))
    };
    !folder.is_symlink()
        && match fs::read_dir(folder) {
            Ok(mut entries) => !entries.any(is_toml),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
}

/// Replaces a file in one step, so that nobody reads half of it.
fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let beside = path.with_extension("pinfold-new");
    fs::write(&beside, bytes)?;
    fs::set_permissions(&beside, fs::Permissions::from_mode(mode & 0o7777))?;
    fs::File::open(&beside)?.sync_all()?;
    fs::rename(&beside, path)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn settings(line: &str) -> Result<Settings, String> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        Settings::parse(&words)
    }

    fn on(host: &Path, more: &str) -> Settings {
        settings(&format!("--host {} {more}", host.display())).unwrap()
    }

    #[test]
    fn an_installation_is_undone_to_the_byte() {
        let host = tempfile::tempdir().unwrap();
        let config = host.path().join("etc/containerd/config.toml");
        fs::create_dir_all(config.parent().unwrap()).unwrap();
        let text = "version = 2\n[plugins.x.containerd.runtimes.runc.options]\nBinaryName = '/usr/bin/crun'";
        fs::write(&config, text).unwrap();
        fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).unwrap();
        let settings = on(host.path(), "");
        assert!(settings.install().unwrap().contains("systemctl restart"));
        assert!(settings.install().unwrap().contains("already"));
        let folder = host.path().join("opt/pinfold");
        let program = fs::metadata(folder.join("pinfold-runtime")).unwrap();
        assert_eq!(program.permissions().mode() & 0o777, 0o755);
        let real = fs::read_link(folder.join(real::LINK)).unwrap();
        assert_eq!(real, Path::new("/usr/bin/crun"));
        assert!(
            fs::read_to_string(&config)
                .unwrap()
                .contains("'/opt/pinfold/pinfold-runtime'")
        );
        assert!(settings.uninstall().unwrap().contains("as it was before"));
        assert!(settings.uninstall().unwrap().contains("no handler"));
        assert_eq!(fs::read_to_string(&config).unwrap(), text);
        assert_eq!(
            fs::metadata(&config).unwrap().permissions().mode() & 0o777,
            0o600
        );
        // Running containers still need the program.
        assert!(folder.join("pinfold-runtime").exists());
    }

    #[test]
    fn a_file_that_the_installation_made_goes_with_it() {
        for (more, file) in [
            ("", "etc/containerd/config.toml"),
            (
                "--runtime crio",
                "etc/crio/crio.conf.d/99-pinfold-required.conf",
            ),
        ] {
            let host = tempfile::tempdir().unwrap();
            let file = host.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            let settings = on(host.path(), more);
            settings.install().unwrap();
            assert!(
                fs::read_to_string(&file)
                    .unwrap()
                    .contains("pinfold-required")
            );
            settings.uninstall().unwrap();
            assert!(!file.exists());
        }
    }

    #[test]
    fn the_link_follows_the_configuration() {
        let host = tempfile::tempdir().unwrap();
        let config = host.path().join("etc/containerd/config.toml");
        fs::create_dir_all(config.parent().unwrap()).unwrap();
        let link = host.path().join("opt/pinfold").join(real::LINK);
        let named = "version = 2\n[plugins.x.containerd.runtimes.runc.options]\nBinaryName = '/usr/bin/crun'\n";
        for (text, more, target) in [
            (named, "", Some("/usr/bin/crun")),
            ("version = 2\n", "", None),
            ("version = 2\n", "--real /bin/youki", Some("/bin/youki")),
            ("version = 2\n", "", None),
        ] {
            fs::write(&config, text).unwrap();
            on(host.path(), more).install().unwrap();
            let real = fs::read_link(&link).ok();
            assert_eq!(real.as_deref(), target.map(Path::new));
        }
    }

    #[test]
    fn imported_files_are_refused_before_anything_changes() {
        let host = tempfile::tempdir().unwrap();
        let folder = host.path().join("etc/containerd");
        fs::create_dir_all(folder.join("conf.d")).unwrap();
        let config = folder.join("config.toml");
        let install = |imports: &str| {
            fs::write(&config, format!("version = 2\nimports = [{imports}]\n")).unwrap();
            on(host.path(), "").install()
        };
        let usual = "'/etc/containerd/conf.d/*.toml'";
        fs::write(folder.join("conf.d/a.toml"), "").unwrap();
        for imports in [
            usual,
            "'conf.d/*.toml'",
            "'/etc/other/*.toml'",
            "'/etc/containerd/../o/*.toml'",
            "'conf.d/b.toml'",
        ] {
            let error = install(imports).unwrap_err();
            let shown = error.starts_with("/etc/containerd/config.toml: it imports /etc/");
            assert!(shown && error.contains("required.md"), "{error}");
        }
        assert!(!host.path().join("opt").exists());
        fs::remove_file(folder.join("conf.d/a.toml")).unwrap();
        install(usual).unwrap();
        install("'none.d/*.toml'").unwrap();
        symlink("/elsewhere", folder.join("link.d")).unwrap();
        install("'link.d/*.toml'").unwrap_err();
    }

    #[test]
    fn the_settings_of_cri_o_stay() {
        let host = tempfile::tempdir().unwrap();
        let config = host.path().join("etc/crio/crio.conf");
        fs::create_dir_all(config.parent().unwrap()).unwrap();
        let text = "[crio.runtime]\ndefault_runtime = 'crun'\n";
        fs::write(&config, text).unwrap();
        let settings = on(host.path(), "--runtime crio --config /etc/crio/crio.conf");
        for done in [settings.install(), settings.uninstall()] {
            let error = done.unwrap_err();
            assert!(
                error.starts_with("/etc/crio/crio.conf: ") && error.contains("crio.conf.d"),
                "{error}"
            );
            assert_eq!(fs::read_to_string(&config).unwrap(), text);
        }
    }

    #[test]
    fn what_would_break_the_runtime_is_refused() {
        let host = tempfile::tempdir().unwrap();
        let folder = host.path().join("etc/containerd");
        fs::create_dir_all(&folder).unwrap();
        let config = folder.join("config.toml");
        let relative =
            "version = 2\n[plugins.x.containerd.runtimes.runc.options]\nBinaryName = 'crun'\n";
        for (text, says) in [("version = 1\n", "version = 2"), (relative, "--real")] {
            fs::write(&config, text).unwrap();
            let error = on(host.path(), "").install().unwrap_err();
            assert!(error.contains(says), "{error}");
            assert_eq!(fs::read_to_string(&config).unwrap(), text);
        }
        on(host.path(), "--real /usr/bin/crun").install().unwrap();
        fs::remove_file(&config).unwrap();
        symlink("elsewhere", &config).unwrap();
        let error = on(host.path(), "").install().unwrap_err();
        assert!(error.contains("symbolic link"), "{error}");
    }

    /// The DaemonSet's container starts with these arguments.
    #[test]
    fn the_daemonset_gives_arguments_that_the_program_knows() {
        let file = include_str!("../../../deploy/components/required-install/daemonset.yaml");
        let arguments: Vec<&str> = file
            .lines()
            .map(str::trim)
            .skip_while(|line| *line != "args:")
            .skip(1)
            .map_while(|line| line.strip_prefix("- "))
            .collect();
        let [command, options @ ..] = arguments.as_slice() else {
            panic!("no arguments");
        };
        assert_eq!(*command, "install");
        let settings = settings(&options.join(" ")).unwrap();
        assert_eq!(settings.host, Path::new("/host"));
        assert!(settings.stay && settings.config().ends_with("containerd/config.toml"));
    }

    #[test]
    fn wrong_options_are_named() {
        assert_eq!(settings("").unwrap().folder, Path::new("/opt/pinfold"));
        for (line, says) in [
            ("--runtime docker", "containerd or crio"),
            ("--folder opt", "absolute"),
            ("--folder /o'pt", "absolute"),
            ("--real", "needs a value"),
            ("--real= --stay", "needs a value"),
            ("--what", "unknown option"),
        ] {
            let error = settings(line).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
