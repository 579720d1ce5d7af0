//! [`Link`]: one connection, from the registration to its end. One task owns it, and reads and writes side by side, so a
//! runtime that is slow to read holds up nobody else. Handlers run one after the other, in the order of the calls.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::event::{Events, Request, RequestError, Runtime};
use super::framing::{
    self, Demux, MAX_MESSAGE_DATA, MessageDecoder, MessageType, PLUGIN_CHANNEL, RUNTIME_CHANNEL,
    RpcMessage, RpcRequest, RpcResponse, StatusCode,
};
use super::handler::{Answer, Call, What};
use super::plugin::Plugin;
use super::proto::{
    ConfigureResponse, Container, PodSandbox, RUNTIME_SERVICE, RegisterPluginRequest,
    SynchronizeResponse,
};
use super::settings::Settings;
use super::state::{Lost, State, tell};

/// The version of NRI whose messages these are.
const VERSION: &str = "v0.12.2";

/// How much is read at a time.
const CHUNK: usize = 64 << 10;

/// How many calls may wait before no more are read, and how much may wait to be sent. Runtimes open one call at a time.
const WAITING: usize = 256;
const UNSENT: usize = 8 << 20;

/// The number of the only call to the runtime: the registration.
const REGISTRATION: u32 = 1;

/// The most memory for the pods and reduced containers of Synchronize. A plugin holds several copies for a moment: the state
/// before, the new state, and what is made of either. All of them must fit into the 128 MiB of the agent's pod.
const SYNCHRONIZE: usize = 16 << 20;

/// The memory of a short text beside its letters: the text's own fields and the allocator's.
const TEXT: usize = 64;

/// The longest time for an answer that a runtime is believed.
const LONGEST_REQUEST: Duration = Duration::from_secs(600);

/// How long a runtime may read nothing while something waits to be sent.
const STALLED: Duration = Duration::from_secs(10);

/// What exists, as far as it was told.
#[derive(Default)]
struct Parts {
    pods: Vec<PodSandbox>,
    /// Containers, reduced by the plugin.
    containers: Vec<Container>,
    /// The memory of both, estimated.
    bytes: usize,
    /// When the first of them came: the runtime counts its time from there.
    since: Option<Instant>,
}

/// A handler that answers a call of the runtime, with the call's stream.
type Running = Pin<Box<dyn Future<Output = (u32, Answer)> + Send>>;

/// One connection.
pub(super) struct Link<'a, P> {
    settings: &'a Settings,
    plugin: Arc<P>,
    events: Events,
    state: &'a watch::Sender<State>,
    stop: CancellationToken,
    demux: Demux,
    /// What comes on the two channels.
    requests: MessageDecoder,
    responses: MessageDecoder,
    /// What is still to be sent, and since when nobody has taken any of it.
    unsent: Vec<u8>,
    unsent_since: Instant,
    /// Calls that wait for their turn, and the one that has it.
    waiting: VecDeque<(u32, Call)>,
    running: Option<Running>,
    /// Whether the runtime has yet to answer the registration.
    registering: bool,
    parts: Parts,
    runtime: Option<Runtime>,
    /// When the registration must be over.
    registered_by: Option<Instant>,
    /// Why the connection ends, once all is sent.
    closing: Option<Lost>,
}

// === impl Parts ===

impl Parts {
    fn extend(&mut self, pods: Vec<PodSandbox>, containers: impl Iterator<Item = Container>) {
        for pod in &pods {
            self.bytes += estimated_bytes(pod, 2 * (pod.labels.len() + pod.annotations.len()));
        }
        self.pods.extend(pods);
        for container in containers {
            let pairs = container.labels.len() + container.annotations.len();
            self.bytes += estimated_bytes(
                &container,
                2 * pairs + container.args.len() + container.env.len(),
            );
            self.containers.push(container);
        }
    }
}

/// The memory of a message with so many texts in lists and maps.
fn estimated_bytes<M: prost::Message>(message: &M, texts: usize) -> usize {
    size_of::<M>() + message.encoded_len() + texts * TEXT
}

// === impl Link ===

impl<'a, P: Plugin> Link<'a, P> {
    pub(super) fn new(
        settings: &'a Settings,
        plugin: Arc<P>,
        state: &'a watch::Sender<State>,
        stop: CancellationToken,
    ) -> Self {
        Self {
            settings,
            events: plugin.events(),
            plugin,
            state,
            stop,
            demux: Demux::default(),
            requests: MessageDecoder::default(),
            responses: MessageDecoder::default(),
            unsent: Vec::new(),
            unsent_since: Instant::now(),
            waiting: VecDeque::new(),
            running: None,
            registering: false,
            parts: Parts::default(),
            runtime: None,
            registered_by: Some(Instant::now() + settings.registration),
            closing: None,
        }
    }

    /// Serves the connection until it ends; why it did. Calls that are still open are cancelled with it.
    pub(super) async fn run(mut self, stream: UnixStream) -> Lost {
        let (mut reader, mut writer) = stream.into_split();
        self.register();
        let mut chunk = vec![0; CHUNK];
        loop {
            match self.turn(&mut reader, &mut writer, &mut chunk).await {
                Ok(()) => {}
                // What the runtime said of itself is a better reason than the end of the stream.
                Err(Lost::Closed) => return self.closing.unwrap_or(Lost::Closed),
                Err(lost) => return lost,
            }
        }
    }

    /// Waits for whatever comes first, and sees to it.
    async fn turn(
        &mut self,
        reader: &mut OwnedReadHalf,
        writer: &mut OwnedWriteHalf,
        chunk: &mut [u8],
    ) -> Result<(), Lost> {
        if self.running.is_none()
            && let Some((stream, call)) = self.waiting.pop_front()
        {
            let plugin = Arc::clone(&self.plugin);
            self.running = Some(Box::pin(async move { (stream, call.answer(plugin).await) }));
        }
        let idle = self.running.is_none() && self.unsent.is_empty();
        if let Some(lost) = self.closing.take_if(|lost| idle && *lost != Lost::Shutdown) {
            return Err(lost);
        }
        let stopping = self.closing == Some(Lost::Stopped);
        let busy = self.waiting.len() >= WAITING || self.unsent.len() >= UNSENT;
        let registered_by = self.registered_by.unwrap_or(self.unsent_since);
        tokio::select! {
            // All arms are cancel safe: a cancelled read or write has moved no bytes, and an unfinished handler stays in
            // `running`.
            () = self.stop.cancelled(), if !stopping => self.closing = Some(Lost::Stopped),
            read = reader.read(chunk), if !busy && !stopping => {
                let length = read.map_err(|error| Lost::Broken(error.to_string()))?;
                self.take(chunk.get(..length).unwrap_or_default())?;
            }
            written = writer.write(&self.unsent), if !self.unsent.is_empty() => {
                let length = written.map_err(|error| Lost::Broken(error.to_string()))?;
                self.unsent.drain(..length.min(self.unsent.len()));
                self.unsent_since = Instant::now();
            }
            (stream, answer) = finished(&mut self.running) => self.answer(stream, answer),
            () = tokio::time::sleep_until(registered_by), if self.registered_by.is_some() => {
                return Err(Lost::Registration(self.settings.registration));
            }
            () = tokio::time::sleep_until(self.unsent_since + STALLED), if !self.unsent.is_empty() => {
                return Err(Lost::Stalled(STALLED));
            }
        }
        Ok(())
    }

    /// Takes what was read; nothing is the end.
    fn take(&mut self, mut bytes: &[u8]) -> Result<(), Lost> {
        if bytes.is_empty() {
            return Err(Lost::Closed);
        }
        while let Some(piece) = self
            .demux
            .next(&mut bytes)
            .map_err(|error| Lost::Nonsense(error.to_string()))?
        {
            let mut bytes = piece.bytes;
            match piece.channel {
                PLUGIN_CHANNEL => {
                    while let Some(frame) = self.requests.next(&mut bytes) {
                        self.request(frame);
                    }
                }
                RUNTIME_CHANNEL => {
                    while let Some(frame) = self.responses.next(&mut bytes) {
                        self.response(frame)?;
                    }
                }
                // A channel that nobody has opened; the runtimes drop what comes there, too.
                _ => {}
            }
        }
        Ok(())
    }

    /// Sees to a request of the runtime.
    fn request(&mut self, frame: RpcMessage) {
        let RpcMessage { stream, kind, data } = frame;
        if kind != MessageType::Request {
            return tracing::debug!(
                "NRI: a message of kind {kind:?} on stream {stream} is left alone"
            );
        }
        let read = data
            .map_err(|length| {
                let says = format!(
                    "a message of {length} bytes is more than the {} that are read",
                    MAX_MESSAGE_DATA
                );
                RpcResponse::error(StatusCode::ResourceExhausted, says)
            })
            .and_then(|data| {
                let nonsense = |error| {
                    RpcResponse::error(
                        StatusCode::InvalidArgument,
                        format!("no ttrpc request: {error}"),
                    )
                };
                let RpcRequest {
                    service,
                    method,
                    payload,
                    ..
                } = RpcRequest::decode(data.as_slice()).map_err(nonsense)?;
                // The payload is a copy. A part of Synchronize has 4 MiB.
                drop(data);
                Request::read(&service, &method, &payload).map_err(|error| refused(&error))
            });
        match read {
            Ok(request) => self.serve(stream, request),
            Err(error) => {
                let says = error
                    .status
                    .as_ref()
                    .map(|status| status.message.as_str())
                    .unwrap_or_default();
                tracing::warn!("NRI: {says}");
                self.send(&error.encode(stream));
            }
        }
    }

    fn serve(&mut self, stream: u32, request: Request) {
        match request {
            Request::Configure(runtime) => {
                self.registered_by = None;
                tell(self.state, State::Registered(runtime.clone()));
                self.runtime = Some(runtime);
                let events = ConfigureResponse {
                    events: self.events.mask(),
                };
                self.respond(stream, events.encode_to_vec());
            }
            Request::Synchronize {
                pods,
                containers,
                more,
            } => {
                let since = *self.parts.since.get_or_insert_with(Instant::now);
                let plugin = &self.plugin;
                self.parts.extend(
                    pods,
                    containers
                        .into_iter()
                        .map(|container| plugin.reduce(container)),
                );
                if self.parts.bytes > SYNCHRONIZE {
                    self.parts = Parts::default();
                    return self.refuse(stream, StatusCode::ResourceExhausted, too_large());
                }
                if more {
                    let response = SynchronizeResponse {
                        update: Vec::new(),
                        more,
                    };
                    return self.respond(stream, response.encode_to_vec());
                }
                let Parts {
                    pods, containers, ..
                } = std::mem::take(&mut self.parts);
                let limit = self.limit();
                let what = What::Synchronize(pods, containers);
                self.waiting.push_back((
                    stream,
                    Call {
                        what,
                        limit,
                        deadline: since + limit,
                    },
                ));
            }
            Request::Event(event, subject) if self.events.contains(event) => {
                let limit = self.limit();
                let what = What::Event(event, subject);
                self.waiting.push_back((
                    stream,
                    Call {
                        what,
                        limit,
                        deadline: Instant::now() + limit,
                    },
                ));
            }
            Request::Shutdown => {
                self.closing = self.closing.take().or(Some(Lost::Shutdown));
                self.respond(stream, Vec::new());
            }
            Request::Event(..) | Request::Other => self.respond(stream, Vec::new()),
        }
    }

    /// How long a handler may take: the runtime wants an answer somewhat later.
    fn limit(&self) -> Duration {
        let told = self
            .runtime
            .as_ref()
            .and_then(|runtime| runtime.request_timeout_ms);
        told.map_or(self.settings.request, Duration::from_millis)
            .min(LONGEST_REQUEST)
            .mul_f64(0.75)
    }

    /// Sends the answer to a call.
    fn answer(&mut self, stream: u32, answer: Answer) {
        match answer {
            Answer::Synchronized(Ok(payload)) => {
                if let Some(runtime) = &self.runtime {
                    tell(self.state, State::Synchronized(runtime.clone()));
                }
                self.respond(stream, payload);
            }
            Answer::Synchronized(Err(refusal)) => {
                self.refuse(stream, StatusCode::Unknown, refusal.to_string());
            }
            Answer::Event(Ok(payload)) => self.respond(stream, payload),
            Answer::Event(Err(refusal)) => {
                self.send(
                    &RpcResponse::error(StatusCode::Unknown, refusal.to_string()).encode(stream),
                );
            }
        }
    }

    /// Refuses Synchronize. The runtime closes the connection then; if not, nothing more would come.
    fn refuse(&mut self, stream: u32, code: StatusCode, reason: String) {
        self.send(&RpcResponse::error(code, reason.clone()).encode(stream));
        self.closing = self.closing.take().or(Some(Lost::Synchronize(reason)));
    }

    fn respond(&mut self, stream: u32, payload: Vec<u8>) {
        self.send(&RpcResponse::answer(payload).encode(stream));
    }

    fn send_on(&mut self, channel: u32, message: &[u8]) {
        if self.unsent.is_empty() {
            self.unsent_since = Instant::now();
        }
        framing::append_frames(channel, message, &mut self.unsent);
    }

    fn send(&mut self, message: &[u8]) {
        self.send_on(PLUGIN_CHANNEL, message);
    }

    /// Sends the registration, the only call to the runtime.
    fn register(&mut self) {
        let registration = RegisterPluginRequest {
            name: self.settings.name.clone(),
            index: format!("{:02}", self.settings.index),
            version: VERSION.to_owned(),
        };
        let limit = self.settings.registration;
        let request = RpcRequest {
            service: RUNTIME_SERVICE.to_owned(),
            method: "RegisterPlugin".to_owned(),
            payload: registration.encode_to_vec(),
            timeout_nanoseconds: i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX),
        };
        // A plugin's name is short, so the message is not too long.
        if let Some(message) =
            framing::encode_message(REGISTRATION, MessageType::Request, &request.encode_to_vec())
        {
            self.registering = true;
            self.send_on(RUNTIME_CHANNEL, &message);
        }
    }

    /// Handles the runtime's response to the registration. Other responses answer no call and are dropped.
    fn response(&mut self, frame: RpcMessage) -> Result<(), Lost> {
        let RpcMessage { stream, kind, data } = frame;
        if !self.registering || stream != REGISTRATION || kind != MessageType::Response {
            tracing::debug!("NRI: a message of kind {kind:?} on stream {stream} answers no call");
            return Ok(());
        }
        self.registering = false;
        let response = data
            .map_err(|length| format!("a response of {length} bytes"))
            .and_then(|data| {
                RpcResponse::decode(data.as_slice()).map_err(|error| error.to_string())
            })
            .map_err(Lost::Nonsense)?;
        response.into_result().map_err(|status| Lost::Refused {
            code: status.code,
            message: status.message,
        })?;
        // The runtime sends Configure at once.
        self.registered_by = self
            .registered_by
            .map(|_| Instant::now() + self.settings.registration);
        Ok(())
    }
}

/// The answer of the running handler. Waits forever if no handler runs.
async fn finished(running: &mut Option<Running>) -> (u32, Answer) {
    let Some(handler) = running else {
        return std::future::pending().await;
    };
    let done = handler.await;
    *running = None;
    done
}

/// The refusal of a Synchronize that would need too much memory.
fn too_large() -> String {
    format!(
        "the node's pods and containers need more than the {} MiB that are kept of them: shorten the pods' annotations and the \
         containers' arguments on this node",
        SYNCHRONIZE >> 20
    )
}

/// The answer to a call that can't be served.
fn refused(error: &RequestError) -> RpcResponse {
    let code = match error {
        RequestError::Unknown { .. } => StatusCode::Unimplemented,
        RequestError::Nonsense { .. } | RequestError::Missing(..) => StatusCode::InvalidArgument,
    };
    RpcResponse::error(code, error.to_string())
}

/// Serves the runtime until it is told to stop; connects again, with growing waits, whenever there is no runtime.
///
/// Told to stop, it answers what it was asked before, and closes the connection. The runtime goes on without it.
pub async fn serve<P: Plugin>(
    settings: Settings,
    plugin: Arc<P>,
    state: watch::Sender<State>,
    stop: CancellationToken,
) {
    let (least, most) = settings.backoff;
    let mut wait = least;
    loop {
        let lost = tokio::select! {
            // Neither arm loses anything: a connection that comes about too late is closed.
            () = stop.cancelled() => Lost::Stopped,
            connected = UnixStream::connect(&settings.socket) => match connected {
                Ok(stream) => {
                    tell(&state, State::Connecting);
                    let link = Link::new(&settings, Arc::clone(&plugin), &state, stop.clone());
                    link.run(stream).await
                }
                Err(error) => Lost::Unreachable {
                    socket: settings.socket.display().to_string(),
                    error: error.to_string(),
                },
            },
        };
        // A runtime that came as far as this is worth coming back to at once.
        if matches!(*state.borrow(), State::Synchronized(_)) {
            wait = least;
        }
        let over = lost == Lost::Stopped;
        tell(&state, State::Away(lost));
        if over {
            return;
        }
        tokio::select! {
            // It is only slept here.
            () = stop.cancelled() => return tell(&state, State::Away(Lost::Stopped)),
            () = tokio::time::sleep(wait) => wait = (wait * 2).min(most),
        }
    }
}
