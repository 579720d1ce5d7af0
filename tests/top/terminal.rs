//! A terminal whose screen and keyboard belong to the test.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::unistd::Pid;
use tempfile::TempDir;

/// The time limit for what follows soon. Only a failure takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// The last byte of a shell on the terminal. No other output has it.
const END: u8 = 5;

/// `pinfold top` on a terminal.
pub(crate) struct Terminal {
    child: Child,
    keyboard: File,
    /// The other end.
    line: OwnedFd,
    /// How the terminal was set before and after.
    settings: TempDir,
    pub(crate) shown: Arc<Mutex<Shown>>,
}

pub(crate) struct Shown {
    pub(crate) screen: vt100::Parser,
    pub(crate) bytes: usize,
    /// Whether the shell's last byte has been read.
    pub(crate) has_ended: bool,
    /// Whether the reader leaves the output in the terminal.
    pub(crate) deaf: bool,
}

/// At the end, the shell waits until the test has read the last output, which the end of a session discards.
pub(crate) const SHELL: &str = r#"stty -g >"$SETTINGS/before"; "$0" "$@"; code=$?; stty -g >"$SETTINGS/after"
printf '\005'; until [ -e "$SETTINGS/seen" ]; do sleep 0.02; done; exit $code"#;

/// As [`SHELL`], for a test that leaves the last output in the terminal.
pub(crate) const UNREAD: &str =
    r#"stty -g >"$SETTINGS/before"; "$0" "$@"; code=$?; stty -g >"$SETTINGS/after"; exit $code"#;

fn size(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).unwrap()
}

impl Terminal {
    pub(crate) fn start(columns: u16, lines: u16, arguments: &[&str]) -> Self {
        Self::start_in(SHELL, &[], columns, lines, arguments)
    }

    /// Starts `pinfold top` below a script, with additional variables.
    pub(crate) fn start_in(
        shell: &str,
        variables: &[(&str, &str)],
        columns: u16,
        lines: u16,
        arguments: &[&str],
    ) -> Self {
        let window = Winsize {
            ws_row: lines,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let OpenptyResult { master, slave } = openpty(Some(&window), None).unwrap();
        let settings = TempDir::new().unwrap();
        let end = || Stdio::from(slave.try_clone().unwrap());
        // The program runs below a shell in a separate session with this terminal, so that a resize sends SIGWINCH to the
        // program.
        let child = Command::new("setsid")
            .args([
                "--ctty",
                "--wait",
                "sh",
                "-c",
                shell,
                env!("CARGO_BIN_EXE_pinfold"),
                "top",
            ])
            .args(arguments)
            .env("SETTINGS", settings.path())
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR")
            .env_remove("PINFOLD_LISTEN")
            .envs(variables.iter().copied())
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let screen = vt100::Parser::new(size(lines.max(1)), size(columns.max(1)), 0);
        let shown = Arc::new(Mutex::new(Shown {
            screen,
            bytes: 0,
            has_ended: false,
            deaf: false,
        }));
        let (mut output, copy) = (File::from(master.try_clone().unwrap()), Arc::clone(&shown));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                while copy.lock().unwrap().deaf {
                    std::thread::sleep(Duration::from_millis(10));
                }
                let Ok(count @ 1..) = output.read(&mut buffer) else {
                    return;
                };
                let mut shown = copy.lock().unwrap();
                shown.screen.process(&buffer[..count]);
                shown.bytes += count;
                shown.has_ended |= buffer[..count].contains(&END);
            }
        });
        Self {
            child,
            keyboard: File::from(master),
            line: slave,
            settings,
            shown,
        }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn text(&self) -> String {
        self.shown.lock().unwrap().screen.screen().contents()
    }

    pub(crate) fn until(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = self.text();
            if wanted(&text) {
                return text;
            }
            assert!(Instant::now() < deadline, "never seen: {what}\n{text}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn resize(&self, columns: u16, lines: u16) {
        self.shown
            .lock()
            .unwrap()
            .screen
            .screen_mut()
            .set_size(size(lines), size(columns));
        let done = Command::new("stty")
            .args(["cols", &columns.to_string(), "rows", &lines.to_string()])
            .stdin(Stdio::from(self.line.try_clone().unwrap()))
            .status();
        assert!(done.unwrap().success());
    }

    /// Changes the settings as shells do.
    pub(crate) fn sane(&self) {
        let line = Stdio::from(self.line.try_clone().unwrap());
        assert!(
            Command::new("stty")
                .arg("sane")
                .stdin(line)
                .status()
                .unwrap()
                .success()
        );
    }

    /// The program's process: the shell's only child.
    pub(crate) fn id(&self) -> Pid {
        let parent = self.child.id();
        let children =
            std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
        Pid::from_raw(children.split_whitespace().next().unwrap().parse().unwrap())
    }

    /// Waits for the end and checks that the terminal is restored.
    pub(crate) fn ended(mut self) -> ExitStatus {
        let status = self.exited();
        self.is_given_back("after");
        status
    }

    /// Waits for the end.
    pub(crate) fn exited(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            if self.shown.lock().unwrap().has_ended {
                std::fs::write(self.settings.path().join("seen"), "").unwrap();
            }
            assert!(
                Instant::now() < deadline,
                "it does not end\n{}",
                self.text()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Checks that the terminal's settings at a moment equal those before the start.
    pub(crate) fn is_set_as_before(&self, when: &str) {
        let set = |when: &str| std::fs::read_to_string(self.settings.path().join(when)).unwrap();
        assert!(
            set("before").contains(':') && set("before") == set(when),
            "the terminal is set as it was"
        );
    }

    /// Checks that the terminal's settings and screen are restored at a moment.
    pub(crate) fn is_given_back(&self, when: &str) {
        self.is_set_as_before(when);
        // The last bytes may not have arrived yet.
        self.until("the shell's own screen", |text| !text.contains("POD"));
        let shown = self.shown.lock().unwrap();
        let screen = shown.screen.screen();
        assert!(
            !screen.alternate_screen() && !screen.hide_cursor(),
            "{}",
            screen.contents()
        );
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The end of the shell closes the terminal, and the program ends with the terminal.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
