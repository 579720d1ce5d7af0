//! A headless Chromium, driven over its DevTools protocol.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A page in a browser.
pub(crate) struct Page {
    browser: Child,
    socket: WebSocketStream<TcpStream>,
    /// The tab's, once there is one.
    session: Option<String>,
    next: u64,
    /// What the page and its console complained about.
    pub(crate) complaints: Vec<String>,
    _profile: tempfile::TempDir,
}

// === impl Page ===

impl Page {
    /// Opens a file. The browser has no network.
    pub(crate) async fn open(file: &Path) -> Self {
        let profile = tempfile::tempdir().unwrap();
        let mut browser = Command::new("chromium")
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                // Nobody listens there.
                "--proxy-server=127.0.0.1:9",
                "--remote-debugging-port=0",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let url = devtools(&mut browser);
        let address = url
            .strip_prefix("ws://")
            .and_then(|rest| rest.split_once('/'));
        let stream = TcpStream::connect(address.unwrap().0).await.unwrap();
        let (socket, _) = tokio_tungstenite::client_async(&url, stream).await.unwrap();
        let mut page = Self {
            browser,
            socket,
            session: None,
            next: 0,
            complaints: Vec::new(),
            _profile: profile,
        };
        page.load(file).await;
        page
    }

    /// Makes a tab and loads the file in it.
    async fn load(&mut self, file: &Path) {
        let made = self
            .call("Target.createTarget", json!({"url": "about:blank"}))
            .await;
        let parameters = json!({"targetId": made["targetId"], "flatten": true});
        let attached = self.call("Target.attachToTarget", parameters).await;
        self.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            self.call(domain, json!({})).await;
        }
        let url = format!("file://{}", file.display());
        self.call("Page.navigate", json!({"url": url})).await;
        let begin = Instant::now();
        while self
            .evaluate("location.href != 'about:blank' && document.readyState")
            .await
            != "complete"
        {
            assert!(begin.elapsed() < PATIENCE, "the page doesn't load");
        }
    }

    /// The answer to a command. Complaints that arrive before it are kept.
    async fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.next += 1;
        let mut command = json!({"id": self.next, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        let text = command.to_string();
        self.socket.send(Message::text(text)).await.unwrap();
        loop {
            let message = tokio::time::timeout(PATIENCE, self.socket.next());
            let message = message.await.unwrap().unwrap().unwrap();
            let Message::Text(text) = message else {
                continue;
            };
            let mut message: Value = serde_json::from_str(&text).unwrap();
            match message["method"].as_str() {
                Some("Log.entryAdded" | "Runtime.exceptionThrown" | "Runtime.consoleAPICalled") => {
                    self.complaints.push(message["params"].to_string());
                }
                Some(_) => {}
                None if message["id"] == self.next => {
                    assert!(message["error"].is_null(), "{method}: {message}");
                    return message["result"].take();
                }
                None => {}
            }
        }
    }

    /// The value of an expression in the page.
    pub(crate) async fn evaluate(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "returnByValue": true});
        let mut answer = self.call("Runtime.evaluate", parameters).await;
        assert!(answer["exceptionDetails"].is_null(), "{answer}");
        answer["result"]["value"].take()
    }

    /// Shows the page as on a screen of this width, light or dark.
    pub(crate) async fn show(&mut self, width: u32, scheme: &str) {
        let metrics =
            json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", metrics)
            .await;
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", media).await;
    }

    /// The whole page as a PNG.
    pub(crate) async fn picture(&mut self) -> Vec<u8> {
        let parameters = json!({"format": "png", "captureBeyondViewport": true});
        let answer = self.call("Page.captureScreenshot", parameters).await;
        STANDARD.decode(answer["data"].as_str().unwrap()).unwrap()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.browser.kill();
        let _ = self.browser.wait();
    }
}

/// The address at which the browser takes commands, which it prints when it has started.
fn devtools(browser: &mut Child) -> String {
    let mut lines = BufReader::new(browser.stderr.take().unwrap()).lines();
    let url = lines
        .by_ref()
        .map_while(Result::ok)
        .find_map(|line| Some(line.strip_prefix("DevTools listening on ")?.to_owned()))
        .expect("chromium ends without a DevTools address");
    // The browser must not stop because nobody reads what it prints.
    std::thread::spawn(move || lines.for_each(drop));
    url
}
