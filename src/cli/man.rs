//! `pinfold man`: the manual pages of the commands.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Command};
use clap_mangen::Man;

/// Print the manual page of a command, or write all pages into a folder.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold man | man -l -                                 read the page of pinfold
  pinfold man scene render | man -l -                    read the page of a command
  pinfold man --dir /usr/local/share/man/man1            install all pages")]
pub(super) struct ManArgs {
    /// The command, like scene render [default: pinfold itself]
    #[arg(value_name = "COMMAND", conflicts_with = "dir")]
    path: Vec<String>,
    /// Folder for the pages of all commands, which is made if it does not exist
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

// === impl ManArgs ===

impl ManArgs {
    /// Prints or writes the pages of `command`, the program's full command.
    pub(super) fn run(self, mut command: Command) -> anyhow::Result<ExitCode> {
        command = command.disable_help_subcommand(true);
        command.build();
        if let Some(folder) = &self.dir {
            fs::create_dir_all(folder)
                .with_context(|| format!("can't make the folder {}", folder.display()))?;
            write(&command, folder)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut chosen = &command;
        for name in &self.path {
            chosen = chosen.find_subcommand(name).with_context(|| {
                let names: Vec<&str> = visible(chosen).map(Command::get_name).collect();
                let known = if names.is_empty() {
                    "it has no commands".to_owned()
                } else {
                    format!("its commands are {}", names.join(", "))
                };
                format!("{} has no command {name}: {known}", title(chosen))
            })?;
        }
        super::document(&page(chosen).context("can't make the manual page")?)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The commands that a page names.
fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
}

/// The command's whole name: `pinfold-scene-render`.
fn title(command: &Command) -> &str {
    command.get_display_name().unwrap_or(command.get_name())
}

/// The page of a command, as roff. The library fills paragraphs, which would join the lines of the examples, so these follow
/// as they are.
fn page(command: &Command) -> std::io::Result<String> {
    let mut page = Vec::new();
    let man = Man::new(command.clone());
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if visible(command).next().is_some() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut page = String::from_utf8_lossy(&page).into_owned();
    if let Some(notes) = command.get_after_help() {
        page += &verbatim(&notes.to_string());
    }
    Ok(page)
}

/// Notes with examples as a section whose lines stay as they are.
fn verbatim(notes: &str) -> String {
    let mut section = ".SH NOTES\n.nf\n".to_owned();
    for line in notes.lines() {
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        // A period or an apostrophe at its start would make the line a request.
        let start = if line.starts_with(['.', '\'']) {
            "\\&"
        } else {
            ""
        };
        section += &format!("{start}{line}\n");
    }
    section + ".fi\n"
}

/// Writes the pages of a command and of the commands below it.
fn write(command: &Command, folder: &Path) -> anyhow::Result<()> {
    let file = folder.join(format!("{}.1", title(command)));
    let page = page(command).context("can't make the manual page")?;
    fs::write(&file, page).with_context(|| format!("can't write {}", file.display()))?;
    visible(command).try_for_each(|command| write(command, folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_stay_as_they_are() {
        assert_eq!(
            verbatim("Examples:\n  a --b '\\'\n.c"),
            ".SH NOTES\n.nf\nExamples:\n  a \\-\\-b '\\e'\n\\&.c\n.fi\n"
        );
    }

    #[test]
    fn every_visible_command_has_a_page() {
        let folder = tempfile::tempdir().unwrap();
        let args = ManArgs {
            path: Vec::new(),
            dir: Some(folder.path().join("man1")),
        };
        args.run(crate::cli::command()).unwrap();
        let exists = |name: &str| folder.path().join("man1").join(name).is_file();
        for name in [
            "pinfold.1",
            "pinfold-run.1",
            "pinfold-man.1",
            "pinfold-version.1",
        ] {
            assert!(exists(name), "{name}");
        }
        assert!(!exists("pinfold-train.1") && !exists("pinfold-help.1"));
        let run = fs::read_to_string(folder.path().join("man1/pinfold-run.1")).unwrap();
        for words in [
            "PINFOLD_RESERVED",
            ".SH NOTES",
            "\n  pinfold run \\-\\-manifest\\-dir ./pods  ",
        ] {
            assert!(run.contains(words), "{words}: {run}");
        }
    }
}
