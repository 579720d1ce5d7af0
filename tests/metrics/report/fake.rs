//! A Prometheus that answers from a file, from a function, or from a real Prometheus.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A request: the method, the path with the query or the form, and the head.
pub(crate) struct ReceivedRequest {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) head: String,
}

type Answers = dyn Fn(&ReceivedRequest) -> (u16, String) + Send + Sync;

/// Listens until the test ends.
pub(crate) struct Fake {
    pub(crate) address: SocketAddr,
}

impl Fake {
    pub(crate) fn start(
        answers: impl Fn(&ReceivedRequest) -> (u16, String) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answers: Arc<Answers> = Arc::new(answers);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let answers = Arc::clone(&answers);
                // The client may close the connection in between.
                std::thread::spawn(move || drop(answer(&stream.unwrap(), &*answers)));
            }
        });
        Self { address }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A Prometheus that answers only recorded requests.
    pub(crate) fn recorded(answers: BTreeMap<String, String>) -> Self {
        Self::start(move |asked| match answers.get(&asked.target) {
            Some(body) => (200, body.clone()),
            None => (404, format!("nothing is recorded for {}", asked.target)),
        })
    }

    /// A Prometheus that forwards every request, and records the answers.
    pub(crate) fn recording(to: SocketAddr) -> (Self, Arc<Mutex<BTreeMap<String, String>>>) {
        let kept = Arc::new(Mutex::new(BTreeMap::new()));
        let into = Arc::clone(&kept);
        let fake = Self::start(move |asked| {
            let mut stream = TcpStream::connect(to).unwrap();
            // A response to HTTP/1.0 is a single piece.
            let (method, target) = (&asked.method, &asked.target);
            write!(stream, "{method} {target} HTTP/1.0\r\nHost: {to}\r\n\r\n").unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            into.lock().unwrap().insert(target.clone(), body.to_owned());
            (
                head.split(' ').nth(1).unwrap().parse().unwrap(),
                body.to_owned(),
            )
        });
        (fake, kept)
    }
}

fn answer(stream: &TcpStream, answers: &Answers) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut head = String::new();
    let mut long = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? <= 2 {
            break;
        }
        if let Some(length) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            long = length.trim().parse().unwrap();
        }
        head += &line.to_ascii_lowercase();
    }
    let mut body = vec![0; long];
    reader.read_exact(&mut body)?;
    let mut words = first.split(' ');
    let (method, path) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    let target = match body.is_empty() {
        true => path.to_owned(),
        false => format!("{path}?{}", String::from_utf8_lossy(&body)),
    };
    let (status, text) = answers(&ReceivedRequest {
        method: method.to_owned(),
        target,
        head,
    });
    let mut stream = stream;
    write!(
        stream,
        "HTTP/1.1 {status} Word\r\nLocation: https://login\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    )
}
