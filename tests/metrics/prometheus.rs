//! A demo with real cgroups and processes, and a real Prometheus with the PodMonitor's settings.

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::yaml::here;

/// A free port below the ports that the kernel gives to other sockets, so that none of them takes
/// it before the program does.
pub(crate) fn port() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = std::process::id().wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(20_000 + number % 10_000).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

/// Waits until a server listens on the address.
fn reachable(child: &mut Child, address: SocketAddr) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(address).is_err() {
        let ended = child.try_wait().unwrap();
        let mut says = String::new();
        if ended.is_some() {
            child
                .stderr
                .take()
                .unwrap()
                .read_to_string(&mut says)
                .unwrap();
        }
        assert!(
            ended.is_none() && Instant::now() < deadline,
            "nobody listens at {address}: {ended:?}\n{says}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Ends a process by a signal, and returns its last output.
fn end(child: &mut Child, signal: Signal) -> String {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
    let mut says = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut says)
        .unwrap();
    child.wait().unwrap();
    says
}

/// A running demo. The drop interrupts it, and it then cleans up.
pub(crate) struct Demo {
    child: Child,
    pub(crate) address: SocketAddr,
    _alone: MutexGuard<'static, ()>,
}

/// A machine can run a single demo at a time.
static DEMO: Mutex<()> = Mutex::new(());

// === impl Demo ===

impl Demo {
    pub(crate) fn start() -> Self {
        let alone = DEMO.lock().unwrap_or_else(PoisonError::into_inner);
        let address = port();
        let mut command = Command::new(env!("CARGO_BIN_EXE_pinfold"));
        // A parameter server on every machine: the dashboard has panels for servers. A long demo has slices of half a minute,
        // in which rates can be computed; the drop ends it.
        command
            .args(["demo", "--seconds", "1800", "--ps", "1"])
            .args(["--listen", &address.to_string()]);
        command
            .env_remove("PINFOLD_LOG_LEVEL")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut demo = Self {
            child: command.spawn().unwrap(),
            address,
            _alone: alone,
        };
        reachable(&mut demo.child, address);
        demo
    }

    pub(crate) fn stop(mut self) -> String {
        end(&mut self.child, Signal::SIGINT)
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            end(&mut self.child, Signal::SIGINT);
        }
    }
}

/// A Prometheus that scrapes every second. The drop ends it.
pub(crate) struct Prometheus {
    child: Child,
    pub(crate) address: SocketAddr,
    _folder: tempfile::TempDir,
}

// === impl Prometheus ===

impl Prometheus {
    /// A Prometheus that scrapes a target with the PodMonitor's settings.
    pub(crate) fn start(target: SocketAddr) -> Self {
        Self::scraping(target, None)
    }

    /// A Prometheus with a second target that reports the same node.
    pub(crate) fn scraping(target: SocketAddr, other: Option<SocketAddr>) -> Self {
        // Like the operator's configuration from the PodMonitor: the target has the labels of the agent's pod.
        let mut text = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
             rule_files: ['{}']\n\
             scrape_configs:\n\
             - job_name: pinfold/pinfold\n  \
               honor_labels: true\n  \
               static_configs:\n  \
               - targets: ['{target}']\n    \
                 labels: {{node: n1, namespace: pinfold, pod: pinfold-abcde, container: pinfold}}\n",
            here("deploy/rules/pinfold.rules.yaml").display()
        );
        if let Some(other) = other {
            text += &format!(
                "- job_name: other\n  \
                   honor_labels: true\n  \
                   static_configs:\n  \
                   - targets: ['{other}']\n    \
                     labels: {{instance: '{target}'}}\n"
            );
        }
        Self::with(tempfile::tempdir().unwrap(), &text, &[])
    }

    /// A Prometheus without targets and with these series, in OpenMetrics with timestamps.
    pub(crate) fn holding(series: &str) -> Self {
        Self::holding_with(series, "global: {}\n")
    }

    /// A Prometheus without targets that evaluates the recording rules on these series.
    pub(crate) fn recording(series: &str) -> Self {
        let rules = here("deploy/rules/pinfold.rules.yaml");
        let text = format!(
            "global: {{evaluation_interval: 5s}}\nrule_files: ['{}']\n",
            rules.display()
        );
        Self::holding_with(series, &text)
    }

    fn holding_with(series: &str, text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("series");
        std::fs::write(&file, series).unwrap();
        let mut promtool = Command::new("promtool");
        promtool.args(["tsdb", "create-blocks-from", "openmetrics"]);
        let output = promtool
            .arg(&file)
            .arg(folder.path().join("data"))
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let prometheus = Self::with(folder, text, &[]);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !prometheus.ready() {
            assert!(
                Instant::now() < deadline,
                "{} is not ready",
                prometheus.address
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        prometheus
    }

    /// Whether Prometheus has read all files.
    fn ready(&self) -> bool {
        let answer = crate::http::ask(self.address, "GET", "/-/ready");
        answer.is_ok_and(|answer| answer.status == 200)
    }

    /// An empty Prometheus with TLS and the user `reader` with the password `let me in`. Also returns the file with the
    /// certificate authority.
    pub(crate) fn guarded() -> (Self, String) {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let made = |name: &str, more: &[&str]| {
            let mut openssl = Command::new("openssl");
            openssl.args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
            ]);
            openssl.args(["-days", "2", "-subj", &format!("/CN={name}")]);
            openssl.args([
                "-keyout",
                &path(&format!("{name}.key")),
                "-out",
                &path(&format!("{name}.pem")),
            ]);
            let output = openssl.args(more).output();
            let output = output.unwrap_or_else(|error| {
                panic!("openssl is Debian's package of that name: {error}")
            });
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
        };
        made("authority", &[]);
        let (authority, key) = (path("authority.pem"), path("authority.key"));
        let names = [
            "-addext",
            "basicConstraints=critical,CA:FALSE",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ];
        made(
            "server",
            &[&["-CA", &authority, "-CAkey", &key][..], &names].concat(),
        );
        let text = format!(
            "tls_server_config: {{cert_file: '{}', key_file: '{}'}}\n\
             basic_auth_users: {{reader: '$2b$04$abcdefghijklmnopqrstuuTnc8amReAFiMHxaSoW9U22KarbWnkSm'}}\n",
            path("server.pem"),
            path("server.key")
        );
        let web = path("web.yml");
        std::fs::write(&web, text).unwrap();
        let prometheus = Self::with(
            folder,
            "global: {}\n",
            &[&format!("--web.config.file={web}")],
        );
        (prometheus, authority)
    }

    fn with(folder: tempfile::TempDir, text: &str, more: &[&str]) -> Self {
        let config = folder.path().join("prometheus.yml");
        std::fs::write(&config, text).unwrap();
        let address = port();
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!(
            "--storage.tsdb.path={}",
            folder.path().join("data").display()
        ));
        command.arg(format!("--web.listen-address={address}"));
        command.arg("--log.level=warn").args(more);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let child = command.spawn();
        let child = child
            .unwrap_or_else(|error| panic!("prometheus is Debian's package of that name: {error}"));
        let mut prometheus = Self {
            child,
            address,
            _folder: folder,
        };
        reachable(&mut prometheus.child, address);
        prometheus
    }

    /// The series of a query's answer, over the last minute if `range`, else now.
    pub(crate) fn answer(&self, query: &str, range: bool) -> Vec<Value> {
        let address = format!("http://{}", self.address);
        let mut promtool = Command::new("promtool");
        if range {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            let start = format!("--start={}", now.as_secs() - 60);
            promtool.args(["query", "range", "--format=json", "--step=15s", &start]);
        } else {
            promtool.args(["query", "instant", "--format=json"]);
        }
        let output = promtool.args([&address, query]).output().unwrap();
        let says = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{query}: {says}");
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        answer.as_array().cloned().unwrap_or_default()
    }

    /// Whether a query currently has a number as the answer.
    pub(crate) fn has_data(&self, query: &str) -> bool {
        let mut promtool = Command::new("promtool");
        promtool.args([
            "query",
            "instant",
            "--format=json",
            &format!("http://{}", self.address),
            query,
        ]);
        let output = promtool.output().unwrap();
        let says = String::from_utf8_lossy(&output.stderr);
        // Prometheus answers requests before all files are read.
        assert!(
            output.status.success() || says.contains("503"),
            "{query}: {says}"
        );
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let series = answer.as_array().map(Vec::as_slice).unwrap_or_default();
        series
            .iter()
            .any(|one| one["value"][1].as_str().is_some_and(|value| value != "NaN"))
    }

    /// The dashboard as drawn by the script in the same folder.
    pub(crate) fn picture(&self, options: &[&str]) -> String {
        let mut script = Command::new(here("deploy/dashboards/picture"));
        let output = script
            .arg(format!("http://{}", self.address))
            .args(options)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn stop(mut self) -> String {
        end(&mut self.child, Signal::SIGTERM)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            end(&mut self.child, Signal::SIGTERM);
        }
    }
}
