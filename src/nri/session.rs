//! [`Session`]: one connection to the container runtime, and [`serve()`], which connects again and again.
//!
//! A single task owns a connection. It reads, writes and runs a handler concurrently, so a slow
//! reader blocks no handler. Handlers run one after the other, in the order of the requests.

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

use super::event::event_mask;
use super::framing::{
    self, Demux, MAX_MESSAGE_DATA, MessageDecoder, MessageType, PLUGIN_CHANNEL, RUNTIME_CHANNEL,
    RpcMessage, RpcRequest, RpcResponse, StatusCode,
};
use super::handler;
use super::proto::{
    ConfigureResponse, RUNTIME_SERVICE, RegisterPluginRequest, SynchronizeResponse,
};
use super::state::publish;
use super::{
    ConnectionState, Container, Disconnect, EventSet, Plugin, PluginRequest, PluginSettings,
    PodSandbox, Refusal, RequestError, RuntimeInfo,
};

/// The version of NRI that defines the messages in [`proto`](super::proto).
const VERSION: &str = "v0.12.2";

/// The most bytes of one read.
const READ_BYTES: usize = 64 << 10;

/// Limits of the waiting calls and of the unsent bytes, at which the session stops reading.
/// Runtimes open one call at a time.
const MAX_WAITING_CALLS: usize = 256;
const MAX_UNSENT_BYTES: usize = 8 << 20;

/// The stream of the registration, the only call to the runtime.
const REGISTRATION_STREAM: u32 = 1;

/// The most memory for the reduced pods and containers of Synchronize. A plugin holds several
/// copies for a moment: the old state, the new state, and data derived from both. All of them must
/// fit into the 128 MiB of the agent's pod.
const MAX_SYNCHRONIZE_BYTES: usize = 16 << 20;

/// The memory of a short string besides its characters: its fields and the allocator's overhead.
const STRING_OVERHEAD: usize = 64;

/// The upper bound for the request timeout that a runtime sends.
const MAX_REQUEST_TIMEOUT: Duration = Duration::from_secs(600);

/// How long a runtime may read nothing while bytes are unsent.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Default)]
struct SynchronizeParts {
    pods: Vec<PodSandbox>,
    /// Containers, reduced by the plugin.
    containers: Vec<Container>,
    /// The estimated memory of the pods and the containers.
    bytes: usize,
    /// The arrival of the first part, from which the runtime counts the time.
    since: Option<Instant>,
}

/// The plugin's answer to a call of the runtime.
struct PluginAnswer {
    stream: u32,
    is_synchronize: bool,
    /// Encoded.
    answer: Result<Vec<u8>, Refusal>,
}

/// A call of the runtime, which a handler of the plugin answers. The handler begins with the first
/// poll.
type PluginCall = Pin<Box<dyn Future<Output = PluginAnswer> + Send>>;

/// One connection to the container runtime.
pub(super) struct Session<'a, P> {
    settings: &'a PluginSettings,
    plugin: Arc<P>,
    events: EventSet,
    state: &'a watch::Sender<ConnectionState>,
    stop: CancellationToken,
    demux: Demux,
    /// The decoders of the two channels.
    requests: MessageDecoder,
    responses: MessageDecoder,
    /// Bytes to send, and the start of the wait for the next write: the last write, or the first unsent byte.
    unsent: Vec<u8>,
    unsent_since: Instant,
    /// Calls in the queue, and the call whose handler runs.
    waiting: VecDeque<PluginCall>,
    running: Option<PluginCall>,
    /// Whether the response to the registration is still missing.
    awaits_registration: bool,
    /// The last request that could not be read, as logged. A runtime may send the like for every
    /// container.
    unreadable: Option<String>,
    parts: SynchronizeParts,
    runtime: Option<RuntimeInfo>,
    /// The deadline of the registration; `None` once the runtime has sent Configure.
    registration_deadline: Option<Instant>,
    /// Why to disconnect once all bytes are sent.
    closing: Option<Disconnect>,
}

// === impl SynchronizeParts ===

impl SynchronizeParts {
    fn extend(&mut self, pods: Vec<PodSandbox>, containers: impl Iterator<Item = Container>) {
        for pod in &pods {
            self.bytes += estimated_bytes(pod, 2 * (pod.labels.len() + pod.annotations.len()));
        }
        self.pods.extend(pods);
        for container in containers {
            let lines = container.args.len() + container.env.len();
            let texts = 2 * container.annotations.len() + lines;
            self.bytes += estimated_bytes(&container, texts);
            self.containers.push(container);
        }
    }
}

/// The memory of a message that contains this number of strings in lists and maps.
fn estimated_bytes<M: prost::Message>(message: &M, texts: usize) -> usize {
    size_of::<M>() + message.encoded_len() + texts * STRING_OVERHEAD
}

// === impl Session ===

impl<'a, P: Plugin> Session<'a, P> {
    pub(super) fn new(
        settings: &'a PluginSettings,
        plugin: Arc<P>,
        state: &'a watch::Sender<ConnectionState>,
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
            awaits_registration: false,
            unreadable: None,
            parts: SynchronizeParts::default(),
            runtime: None,
            registration_deadline: Some(Instant::now() + settings.registration_timeout),
            closing: None,
        }
    }

    /// Serves the connection until it ends, and returns why it did. The end cancels open calls.
    pub(super) async fn run(mut self, stream: UnixStream) -> Disconnect {
        let (mut reader, mut writer) = stream.into_split();
        self.register();
        let mut chunk = vec![0; READ_BYTES];
        loop {
            match self.handle_next(&mut reader, &mut writer, &mut chunk).await {
                Ok(()) => {}
                // A known reason, such as an announced shutdown, is better than the end of the stream.
                Err(Disconnect::Closed) => return self.closing.unwrap_or(Disconnect::Closed),
                Err(disconnect) => return disconnect,
            }
        }
    }

    /// Waits for the next event of the connection and handles it.
    async fn handle_next(
        &mut self,
        reader: &mut OwnedReadHalf,
        writer: &mut OwnedWriteHalf,
        chunk: &mut [u8],
    ) -> Result<(), Disconnect> {
        if self.running.is_none() {
            self.running = self.waiting.pop_front();
        }
        let idle = self.running.is_none() && self.unsent.is_empty();
        if let Some(disconnect) = self
            .closing
            .take_if(|disconnect| idle && *disconnect != Disconnect::Shutdown)
        {
            return Err(disconnect);
        }
        let stopping = self.closing == Some(Disconnect::Stopped);
        let busy = self.waiting.len() >= MAX_WAITING_CALLS || self.unsent.len() >= MAX_UNSENT_BYTES;
        let registration_deadline = self.registration_deadline.unwrap_or(self.unsent_since);
        tokio::select! {
            // All branches are cancel safe: a cancelled read or write moves no bytes, and an unfinished handler
            // stays in `running`.
            () = self.stop.cancelled(), if !stopping => self.closing = Some(Disconnect::Stopped),
            read = reader.read(chunk), if !busy && !stopping => {
                let length = read.map_err(|error| Disconnect::Broken(error.to_string()))?;
                self.handle_bytes(chunk.get(..length).unwrap_or_default())?;
            }
            written = writer.write(&self.unsent), if !self.unsent.is_empty() => {
                let length = written.map_err(|error| Disconnect::Broken(error.to_string()))?;
                self.unsent.drain(..length.min(self.unsent.len()));
                self.unsent_since = Instant::now();
            }
            answer = answer_of(&mut self.running) => self.send_answer(answer),
            () = tokio::time::sleep_until(registration_deadline), if self.registration_deadline.is_some() => {
                return Err(Disconnect::RegistrationTimeout(self.settings.registration_timeout));
            }
            () = tokio::time::sleep_until(self.unsent_since + WRITE_TIMEOUT), if !self.unsent.is_empty() => {
                return Err(Disconnect::Stalled(WRITE_TIMEOUT));
            }
        }
        Ok(())
    }

    /// Handles bytes from the socket, where no bytes mean the end of the stream.
    fn handle_bytes(&mut self, mut bytes: &[u8]) -> Result<(), Disconnect> {
        if bytes.is_empty() {
            return Err(Disconnect::Closed);
        }
        while let Some(piece) = self
            .demux
            .next(&mut bytes)
            .map_err(|error| Disconnect::InvalidResponse(error.to_string()))?
        {
            let mut bytes = piece.bytes;
            match piece.channel {
                PLUGIN_CHANNEL => {
                    while let Some(message) = self.requests.next(&mut bytes) {
                        self.handle_message(message);
                    }
                }
                RUNTIME_CHANNEL => {
                    while let Some(message) = self.responses.next(&mut bytes) {
                        self.handle_response(message)?;
                    }
                }
                // The channel is unknown. The runtimes drop bytes of unknown channels, too.
                _ => {}
            }
        }
        Ok(())
    }

    fn handle_message(&mut self, message: RpcMessage) {
        let RpcMessage { stream, kind, data } = message;
        if kind != MessageType::Request {
            return tracing::debug!(
                "NRI: a message of kind {kind:?} on stream {stream} is ignored"
            );
        }
        match decode_request(data) {
            Ok(request) => self.handle_request(stream, request),
            Err((code, text)) => {
                if self.unreadable.as_ref() != Some(&text) {
                    tracing::warn!("NRI: {text}");
                    self.unreadable = Some(text.clone());
                }
                self.send_error(stream, code, text);
            }
        }
    }

    fn handle_request(&mut self, stream: u32, request: PluginRequest) {
        match request {
            PluginRequest::Configure(runtime) => {
                self.registration_deadline = None;
                publish(self.state, ConnectionState::Registered(runtime.clone()));
                self.runtime = Some(runtime);
                let events = ConfigureResponse {
                    events: event_mask(&self.events),
                };
                self.send_payload(stream, events.encode_to_vec());
            }
            PluginRequest::Synchronize {
                pods,
                containers,
                more,
            } => {
                self.handle_synchronize(stream, pods, containers, more);
            }
            PluginRequest::Event(event, request) if self.events.contains(&event) => {
                let (plugin, limit) = (Arc::clone(&self.plugin), self.handler_timeout());
                let deadline = Instant::now() + limit;
                self.enqueue(stream, false, async move {
                    handler::event(&*plugin, event, &request, deadline, limit).await
                });
            }
            PluginRequest::Shutdown => {
                self.closing.get_or_insert(Disconnect::Shutdown);
                self.send_payload(stream, Vec::new());
            }
            PluginRequest::Event(..) | PluginRequest::Other => {
                self.send_payload(stream, Vec::new());
            }
        }
    }

    /// Handles a part of Synchronize. The last part puts the call of the plugin's handler into the
    /// queue.
    fn handle_synchronize(
        &mut self,
        stream: u32,
        pods: Vec<PodSandbox>,
        containers: Vec<Container>,
        more: bool,
    ) {
        let since = *self.parts.since.get_or_insert_with(Instant::now);
        let plugin = &self.plugin;
        let reduced = containers
            .into_iter()
            .map(|container| plugin.reduce(container));
        let pods = pods.into_iter().map(|pod| plugin.reduce_pod(pod)).collect();
        self.parts.extend(pods, reduced);
        if self.parts.bytes > MAX_SYNCHRONIZE_BYTES {
            self.parts = SynchronizeParts::default();
            let code = StatusCode::ResourceExhausted;
            return self.refuse_synchronize(stream, code, too_large_reason());
        }
        if more {
            return self.send_payload(stream, SynchronizeResponse { more }.encode_to_vec());
        }
        let SynchronizeParts {
            pods, containers, ..
        } = std::mem::take(&mut self.parts);
        let (plugin, limit) = (Arc::clone(&self.plugin), self.handler_timeout());
        let deadline = since + limit;
        self.enqueue(stream, true, async move {
            handler::synchronize(&*plugin, pods, containers, deadline, limit).await
        });
    }

    fn enqueue(
        &mut self,
        stream: u32,
        is_synchronize: bool,
        handler: impl Future<Output = Result<Vec<u8>, Refusal>> + Send + 'static,
    ) {
        self.waiting.push_back(Box::pin(async move {
            PluginAnswer {
                stream,
                is_synchronize,
                answer: handler.await,
            }
        }));
    }

    /// The time limit of a handler: three quarters of the time that the runtime waits.
    fn handler_timeout(&self) -> Duration {
        let request_timeout = self
            .runtime
            .as_ref()
            .and_then(|runtime| runtime.request_timeout_ms);
        request_timeout
            .map_or(self.settings.request_timeout, Duration::from_millis)
            .min(MAX_REQUEST_TIMEOUT)
            .mul_f64(0.75)
    }

    fn send_answer(&mut self, answer: PluginAnswer) {
        let PluginAnswer {
            stream,
            is_synchronize,
            answer,
        } = answer;
        match answer {
            Ok(payload) => {
                if is_synchronize && let Some(runtime) = &self.runtime {
                    publish(self.state, ConnectionState::Synchronized(runtime.clone()));
                }
                self.send_payload(stream, payload);
            }
            Err(refusal) if is_synchronize => {
                self.refuse_synchronize(stream, StatusCode::Unknown, refusal.to_string());
            }
            Err(refusal) => {
                self.send_error(stream, StatusCode::Unknown, refusal.to_string());
            }
        }
    }

    /// Refuses Synchronize and disconnects. The runtime also closes the connection, and an open one
    /// would bring no further events.
    fn refuse_synchronize(&mut self, stream: u32, code: StatusCode, reason: String) {
        self.send_error(stream, code, reason.clone());
        self.closing
            .get_or_insert(Disconnect::SynchronizeRefused(reason));
    }

    fn send_payload(&mut self, stream: u32, payload: Vec<u8>) {
        self.send(PLUGIN_CHANNEL, &RpcResponse::answer(payload).encode(stream));
    }

    fn send_error(&mut self, stream: u32, code: StatusCode, text: String) {
        self.send(
            PLUGIN_CHANNEL,
            &RpcResponse::error(code, text).encode(stream),
        );
    }

    fn send(&mut self, channel: u32, message: &[u8]) {
        if self.unsent.is_empty() {
            self.unsent_since = Instant::now();
        }
        framing::append_frames(channel, message, &mut self.unsent);
    }

    /// Sends the registration, the only call to the runtime.
    fn register(&mut self) {
        let registration = RegisterPluginRequest {
            name: self.settings.name.clone(),
            index: format!("{:02}", self.settings.index),
            version: VERSION.to_owned(),
        };
        let limit = self.settings.registration_timeout;
        let request = RpcRequest {
            service: RUNTIME_SERVICE.to_owned(),
            method: "RegisterPlugin".to_owned(),
            payload: registration.encode_to_vec(),
            timeout_nanoseconds: i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX),
        };
        // A plugin's name is short, so the message is short enough.
        if let Some(message) = framing::encode_message(
            REGISTRATION_STREAM,
            MessageType::Request,
            &request.encode_to_vec(),
        ) {
            self.awaits_registration = true;
            self.send(RUNTIME_CHANNEL, &message);
        }
    }

    /// Handles the runtime's response to the registration. Other responses answer no call and are
    /// dropped.
    fn handle_response(&mut self, message: RpcMessage) -> Result<(), Disconnect> {
        let RpcMessage { stream, kind, data } = message;
        if !self.awaits_registration
            || stream != REGISTRATION_STREAM
            || kind != MessageType::Response
        {
            tracing::debug!("NRI: a message of kind {kind:?} on stream {stream} answers no call");
            return Ok(());
        }
        self.awaits_registration = false;
        let response = data
            .map_err(|length| format!("a response of {length} bytes"))
            .and_then(|data| {
                RpcResponse::decode(data.as_slice()).map_err(|error| error.to_string())
            })
            .map_err(Disconnect::InvalidResponse)?;
        response
            .into_result()
            .map_err(|status| Disconnect::RegistrationRefused {
                code: status.code,
                message: status.message,
            })?;
        // The runtime sends Configure at once.
        self.registration_deadline = self
            .registration_deadline
            .map(|_| Instant::now() + self.settings.registration_timeout);
        Ok(())
    }
}

/// The answer of the running handler. Waits forever if none runs.
async fn answer_of(running: &mut Option<PluginCall>) -> PluginAnswer {
    let Some(call) = running else {
        return std::future::pending().await;
    };
    let done = call.await;
    *running = None;
    done
}

/// Why a Synchronize that would need too much memory is refused.
fn too_large_reason() -> String {
    format!(
        "the node's pods and containers need more than the limit of {} MiB: shorten the pods' annotations and the \
         containers' arguments on this node",
        MAX_SYNCHRONIZE_BYTES >> 20
    )
}

/// Decodes the data of a request, or the length of data that are too long. The error is the status
/// of the answer.
fn decode_request(data: Result<Vec<u8>, usize>) -> Result<PluginRequest, (StatusCode, String)> {
    let data = data.map_err(|length| {
        let text = format!(
            "a message of {length} bytes is more than the {MAX_MESSAGE_DATA} that are read"
        );
        (StatusCode::ResourceExhausted, text)
    })?;
    let request = RpcRequest::decode(data.as_slice()).map_err(|error| {
        let text = format!("not a ttrpc request: {error}");
        (StatusCode::InvalidArgument, text)
    })?;
    // The payload is a copy of the data, and a part of Synchronize has up to 4 MiB.
    drop(data);
    PluginRequest::read(&request.service, &request.method, &request.payload).map_err(|error| {
        let code = match error {
            RequestError::Unknown { .. } => StatusCode::Unimplemented,
            _ => StatusCode::InvalidArgument,
        };
        (code, error.to_string())
    })
}

/// Serves the runtime until `stop` is cancelled. When a connection ends, connects again with
/// growing waits.
///
/// After `stop`, the session answers the requests that it has received and closes the connection.
/// The runtime continues without the plugin.
pub async fn serve<P: Plugin>(
    settings: PluginSettings,
    plugin: Arc<P>,
    state: watch::Sender<ConnectionState>,
    stop: CancellationToken,
) {
    let (least, most) = settings.backoff;
    let mut wait = least;
    // A single refusal may come from a busy moment. If it repeats, it comes from the node's pods,
    // which change slowly, and each attempt makes the runtime list all its containers.
    let mut refusals = 0;
    loop {
        let disconnect = tokio::select! {
            // Both branches are cancel safe. A connection that completes after `stop` is closed.
            () = stop.cancelled() => Disconnect::Stopped,
            connected = UnixStream::connect(&settings.socket) => match connected {
                Ok(stream) => {
                    publish(&state, ConnectionState::Connecting);
                    let session = Session::new(&settings, Arc::clone(&plugin), &state, stop.clone());
                    let disconnect = session.run(stream).await;
                    plugin.disconnected();
                    disconnect
                }
                Err(error) => Disconnect::Unreachable {
                    socket: settings.socket.display().to_string(),
                    error: error.to_string(),
                },
            },
        };
        // A synchronized connection resets the wait.
        if matches!(*state.borrow(), ConnectionState::Synchronized(_)) {
            wait = least;
        }
        let is_refusal = matches!(disconnect, Disconnect::SynchronizeRefused(_));
        refusals = if is_refusal { refusals + 1 } else { 0 };
        let is_stopped = disconnect == Disconnect::Stopped;
        publish(&state, ConnectionState::Away(disconnect));
        if is_stopped {
            return;
        }
        tokio::select! {
            // Both branches are cancel safe.
            () = stop.cancelled() => return publish(&state, ConnectionState::Away(Disconnect::Stopped)),
            () = tokio::time::sleep(if refusals > 1 { settings.refusal_wait } else { wait }) => {
                wait = (wait * 2).min(most);
            }
        }
    }
}
