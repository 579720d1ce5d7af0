//! A container runtime's half of NRI, as small as tests need.
//!
//! The framing here is not the library's, and follows recordings, so that a test compares the
//! library with another implementation.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use pinfold::nri::{Container, PodSandbox};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

/// How long the tests wait for a message before it counts as missing.
pub(crate) const WAIT: Duration = Duration::from_secs(60);

pub(crate) const PLUGIN: u32 = 1;
pub(crate) const RUNTIME: u32 = 2;
pub(crate) const REQUEST: u8 = 1;
pub(crate) const RESPONSE: u8 = 2;

/// Fails the test instead of waiting for ever.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(WAIT, future)
        .await
        .unwrap_or_else(|_| panic!("{what} does not come"))
}

// The ttrpc envelope and the messages of the calls, by field numbers.

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Call {
    #[prost(string, tag = "1")]
    pub(crate) service: String,
    #[prost(string, tag = "2")]
    pub(crate) method: String,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) payload: Vec<u8>,
    #[prost(int64, tag = "4")]
    pub(crate) timeout: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Reply {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<ReplyStatus>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) payload: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ReplyStatus {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Registration {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) index: String,
    #[prost(string, tag = "3")]
    pub(crate) version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Configure {
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, tag = "3")]
    version: String,
    #[prost(int64, tag = "5")]
    timeout: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Configured {
    #[prost(int32, tag = "2")]
    events: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Synchronize {
    #[prost(message, repeated, tag = "1")]
    pub(crate) pods: Vec<PodSandbox>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) containers: Vec<Container>,
    #[prost(bool, tag = "3")]
    pub(crate) more: bool,
}

/// The fields of the answers with updates, and of the answer to Synchronize.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Changed {
    #[prost(message, repeated, tag = "1")]
    pub(crate) update: Vec<Changes>,
    #[prost(bool, tag = "2")]
    pub(crate) more: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Changes {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) linux: Vec<u8>,
    #[prost(bool, tag = "3")]
    pub(crate) ignore_failure: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct EventMessage {
    #[prost(message, optional, tag = "1")]
    pub(crate) pod: Option<PodSandbox>,
    #[prost(message, optional, tag = "2")]
    pub(crate) container: Option<Container>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StateChange {
    #[prost(int32, tag = "1")]
    pub(crate) event: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) pod: Option<PodSandbox>,
    #[prost(message, optional, tag = "3")]
    pub(crate) container: Option<Container>,
}

/// A container `name` of a pod `pod`.
pub(crate) fn event_message(pod: &str, name: &str) -> EventMessage {
    let text = str::to_owned;
    EventMessage {
        pod: Some(PodSandbox {
            id: format!("sandbox-{pod}"),
            name: text(pod),
            namespace: text("default"),
            ..PodSandbox::default()
        }),
        container: Some(Container {
            id: format!("{pod}-{name}"),
            name: text(name),
            pod_sandbox_id: format!("sandbox-{pod}"),
            ..Container::default()
        }),
    }
}

/// One mux frame.
pub(crate) fn frame(channel: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    [&channel.to_be_bytes(), &length.to_be_bytes(), payload].concat()
}

/// A ttrpc message.
pub(crate) fn message(stream: u32, kind: u8, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).unwrap();
    [
        &length.to_be_bytes(),
        &stream.to_be_bytes(),
        &[kind, 0][..],
        data,
    ]
    .concat()
}

/// A message as runtimes send it: bytes beyond the runtime's buffer make a second frame.
pub(crate) fn framed(channel: u32, message: &[u8]) -> Vec<u8> {
    let (first, rest) = message.split_at(message.len().min(4096));
    let rest = if rest.is_empty() {
        Vec::new()
    } else {
        frame(channel, rest)
    };
    [frame(channel, first), rest].concat()
}

/// A request of the runtime.
pub(crate) fn request(stream: u32, service: &str, method: &str, payload: Vec<u8>) -> Vec<u8> {
    let call = Call {
        service: format!("nri.pkg.api.v1alpha1.{service}"),
        method: method.to_owned(),
        payload,
        timeout: 0,
    };
    framed(PLUGIN, &message(stream, REQUEST, &call.encode_to_vec()))
}

/// A ttrpc message with its channel.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Frame {
    pub(crate) channel: u32,
    pub(crate) stream: u32,
    pub(crate) kind: u8,
    pub(crate) data: Vec<u8>,
    /// The position of the last byte in the stream.
    pub(crate) end: usize,
}

/// Splits a stream as Go's reader would, and fails where that would.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    buffer: Vec<u8>,
    taken: usize,
    channels: BTreeMap<u32, Vec<u8>>,
}

impl Parser {
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Vec<Frame> {
        self.buffer.extend_from_slice(bytes);
        let mut found = Vec::new();
        let word =
            |bytes: &[u8], at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        while self.buffer.len() >= 8 {
            let (channel, length) = (word(&self.buffer, 0), word(&self.buffer, 4) as usize);
            if self.buffer.len() < 8 + length {
                break;
            }
            let held = self.channels.entry(channel).or_default();
            let missing = if held.len() < 10 {
                0
            } else {
                10 + word(held, 0) as usize - held.len()
            };
            assert!(
                length <= missing.max(4096),
                "a frame of {length} bytes does not fit into Go's buffer"
            );
            held.extend_from_slice(&self.buffer[8..8 + length]);
            self.buffer.drain(..8 + length);
            self.taken += 8 + length;
            while held.len() >= 10 && held.len() >= 10 + word(held, 0) as usize {
                let rest = held.split_off(10 + word(held, 0) as usize);
                let whole = std::mem::replace(held, rest);
                let (stream, kind, data) = (word(&whole, 4), whole[8], whole[10..].to_vec());
                found.push(Frame {
                    channel,
                    stream,
                    kind,
                    data,
                    end: self.taken,
                });
            }
        }
        found
    }
}

/// A socket in a temporary folder.
pub(crate) struct Socket {
    folder: tempfile::TempDir,
    listener: Option<UnixListener>,
}

impl Socket {
    pub(crate) fn new() -> Self {
        let mut socket = Self {
            folder: tempfile::tempdir().unwrap(),
            listener: None,
        };
        socket.open();
        socket
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("nri.sock")
    }

    /// The socket loses its listener.
    pub(crate) fn close(&mut self) {
        self.listener = None;
        let _ = std::fs::remove_file(self.path());
    }

    pub(crate) fn open(&mut self) {
        self.close();
        self.listener = Some(UnixListener::bind(self.path()).unwrap());
    }

    pub(crate) async fn accept(&mut self) -> FakeRuntime {
        let listener = self.listener.as_ref().unwrap();
        let (stream, _) = soon("a connection", listener.accept()).await.unwrap();
        FakeRuntime {
            stream,
            parser: Parser::default(),
            ready: VecDeque::new(),
            next: 1,
        }
    }

    /// Accepts, registers, configures and synchronizes an empty node.
    pub(crate) async fn synchronized(&mut self, timeout: i64) -> FakeRuntime {
        let mut runtime = self.accept().await;
        runtime.register().await;
        runtime.configure(timeout).await;
        runtime.call("Synchronize", Vec::new()).await.unwrap();
        runtime
    }
}

/// The runtime's end of a connection.
pub(crate) struct FakeRuntime {
    stream: UnixStream,
    parser: Parser,
    ready: VecDeque<Frame>,
    next: u32,
}

impl FakeRuntime {
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        soon("a reader", self.stream.write_all(bytes))
            .await
            .unwrap();
    }

    /// Reads and writes by different tasks.
    pub(crate) fn split(
        self,
    ) -> (
        tokio::net::unix::OwnedReadHalf,
        tokio::net::unix::OwnedWriteHalf,
    ) {
        self.stream.into_split()
    }

    /// The next message of the plugin on a channel; `None` at the end of the stream.
    pub(crate) async fn next(&mut self, channel: u32) -> Option<Frame> {
        loop {
            if let Some(at) = self.ready.iter().position(|frame| frame.channel == channel) {
                return self.ready.remove(at);
            }
            let mut chunk = [0; 4096];
            match soon("a message", self.stream.read(&mut chunk)).await {
                Ok(0) | Err(_) => return None,
                Ok(length) => self.ready.extend(self.parser.push(&chunk[..length])),
            }
        }
    }

    /// The next call of the plugin.
    pub(crate) async fn called(&mut self) -> (u32, Call) {
        let frame = self.next(RUNTIME).await.expect("the plugin hung up");
        assert_eq!(frame.kind, REQUEST);
        (frame.stream, Call::decode(frame.data.as_slice()).unwrap())
    }

    pub(crate) async fn reply(&mut self, stream: u32, reply: &Reply) {
        self.send(&framed(
            RUNTIME,
            &message(stream, RESPONSE, &reply.encode_to_vec()),
        ))
        .await;
    }

    /// Takes the registration.
    pub(crate) async fn register(&mut self) -> Registration {
        let (stream, call) = self.called().await;
        assert_eq!(
            (call.service.as_str(), call.method.as_str()),
            ("nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin")
        );
        self.reply(stream, &Reply::default()).await;
        Registration::decode(call.payload.as_slice()).unwrap()
    }

    /// Configures; the answer is the mask of events. A timeout of 0 is not told.
    pub(crate) async fn configure(&mut self, timeout: i64) -> i32 {
        let (name, version) = ("fake".to_owned(), "1.0".to_owned());
        let configure = Configure {
            name,
            version,
            timeout,
        }
        .encode_to_vec();
        let answer = self.call("Configure", configure).await.unwrap();
        Configured::decode(answer.as_slice()).unwrap().events
    }

    /// Calls without waiting for the answer; the number of the call.
    pub(crate) async fn begin(&mut self, method: &str, payload: Vec<u8>) -> u32 {
        let stream = self.next;
        self.next += 2;
        self.send(&request(stream, "Plugin", method, payload)).await;
        stream
    }

    /// The next answer.
    pub(crate) async fn answer(&mut self, stream: u32) -> Result<Vec<u8>, (i32, String)> {
        let frame = self.next(PLUGIN).await.expect("the plugin hung up");
        assert_eq!((frame.stream, frame.kind), (stream, RESPONSE));
        let Reply { status, payload } = Reply::decode(frame.data.as_slice()).unwrap();
        status.map_or(Ok(payload), |status| Err((status.code, status.message)))
    }

    pub(crate) async fn call(
        &mut self,
        method: &str,
        payload: Vec<u8>,
    ) -> Result<Vec<u8>, (i32, String)> {
        let stream = self.begin(method, payload).await;
        self.answer(stream).await
    }
}
