//! [`Session`]: one connection, from the registration to its end. One task owns it, and reads and writes side by side, so a
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

use super::event::{Events, PluginRequest, RequestError, RuntimeInfo};
use super::framing::{
    self, Demux, MAX_MESSAGE_DATA, MessageDecoder, MessageType, PLUGIN_CHANNEL, RUNTIME_CHANNEL,
    RpcMessage, RpcRequest, RpcResponse, StatusCode,
};
use super::handler::{HandlerCall, HandlerInput, HandlerOutput};
use super::plugin::Plugin;
use super::proto::{
    ConfigureResponse, Container, PodSandbox, RUNTIME_SERVICE, RegisterPluginRequest,
    SynchronizeResponse,
};
use super::settings::PluginSettings;
use super::state::{ConnectionState, Disconnect, publish};

/// The version of NRI whose messages these are.
const VERSION: &str = "v0.12.2";

/// How much is read at a time.
const READ_BYTES: usize = 64 << 10;

/// How many calls may wait before no more are read, and how much may wait to be sent. Runtimes open one call at a time.
const MAX_WAITING_CALLS: usize = 256;
const MAX_UNSENT_BYTES: usize = 8 << 20;

/// The number of the only call to the runtime: the registration.
const REGISTRATION_STREAM: u32 = 1;

/// The most memory for the pods and reduced containers of Synchronize. A plugin holds several copies for a moment: the state
/// before, the new state, and what is made of either. All of them must fit into the 128 MiB of the agent's pod.
const MAX_SYNCHRONIZE_BYTES: usize = 16 << 20;

/// The memory of a short text beside its letters: the text's own fields and the allocator's.
const STRING_OVERHEAD: usize = 64;

/// The longest time for an answer that a runtime is believed.
const MAX_REQUEST_TIMEOUT: Duration = Duration::from_secs(600);

/// How long a runtime may read nothing while something waits to be sent.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// What exists, as far as it was told.
#[derive(Default)]
struct SynchronizeParts {
    pods: Vec<PodSandbox>,
    /// Containers, reduced by the plugin.
    containers: Vec<Container>,
    /// The memory of both, estimated.
    bytes: usize,
    /// When the first of them came: the runtime counts its time from there.
    since: Option<Instant>,
}

/// A handler that answers a call of the runtime, with the call's stream.
type RunningHandler = Pin<Box<dyn Future<Output = (u32, HandlerOutput)> + Send>>;

/// One connection.
pub(super) struct Session<'a, P> {
    settings: &'a PluginSettings,
    plugin: Arc<P>,
    events: Events,
    state: &'a watch::Sender<ConnectionState>,
    stop: CancellationToken,
    demux: Demux,
    /// What comes on the two channels.
    requests: MessageDecoder,
    responses: MessageDecoder,
    /// What is still to be sent, and since when nobody has taken any of it.
    unsent: Vec<u8>,
    unsent_since: Instant,
    /// Calls that wait for their turn, and the one that has it.
    waiting: VecDeque<(u32, HandlerCall)>,
    running: Option<RunningHandler>,
    /// Whether the runtime has yet to answer the registration.
    awaits_registration: bool,
    parts: SynchronizeParts,
    runtime: Option<RuntimeInfo>,
    /// When the registration must be over.
    registration_deadline: Option<Instant>,
    /// Why the connection ends, once all is sent.
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
            parts: SynchronizeParts::default(),
            runtime: None,
            registration_deadline: Some(Instant::now() + settings.registration_timeout),
            closing: None,
        }
    }

    /// Serves the connection until it ends; why it did. Calls that are still open are cancelled with it.
    pub(super) async fn run(mut self, stream: UnixStream) -> Disconnect {
        let (mut reader, mut writer) = stream.into_split();
        self.register();
        let mut chunk = vec![0; READ_BYTES];
        loop {
            match self.handle_next(&mut reader, &mut writer, &mut chunk).await {
                Ok(()) => {}
                // What the runtime said of itself is a better reason than the end of the stream.
                Err(Disconnect::Closed) => return self.closing.unwrap_or(Disconnect::Closed),
                Err(disconnect) => return disconnect,
            }
        }
    }

    /// Waits for whatever comes first, and sees to it.
    async fn handle_next(
        &mut self,
        reader: &mut OwnedReadHalf,
        writer: &mut OwnedWriteHalf,
        chunk: &mut [u8],
    ) -> Result<(), Disconnect> {
        if self.running.is_none()
            && let Some((stream, call)) = self.waiting.pop_front()
        {
            let plugin = Arc::clone(&self.plugin);
            self.running = Some(Box::pin(async move { (stream, call.run(plugin).await) }));
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
            // All arms are cancel safe: a cancelled read or write has moved no bytes, and an unfinished handler stays in
            // `running`.
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
            (stream, answer) = output_of(&mut self.running) => self.send_output(stream, answer),
            () = tokio::time::sleep_until(registration_deadline), if self.registration_deadline.is_some() => {
                return Err(Disconnect::RegistrationTimeout(self.settings.registration_timeout));
            }
            () = tokio::time::sleep_until(self.unsent_since + WRITE_TIMEOUT), if !self.unsent.is_empty() => {
                return Err(Disconnect::Stalled(WRITE_TIMEOUT));
            }
        }
        Ok(())
    }

    /// Takes what was read; nothing is the end.
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
                // A channel that nobody has opened; the runtimes drop what comes there, too.
                _ => {}
            }
        }
        Ok(())
    }

    /// Sees to a request of the runtime.
    fn handle_message(&mut self, message: RpcMessage) {
        let RpcMessage { stream, kind, data } = message;
        if kind != MessageType::Request {
            return tracing::debug!(
                "NRI: a message of kind {kind:?} on stream {stream} is left alone"
            );
        }
        let read = data
            .map_err(|length| {
                let text = format!(
                    "a message of {length} bytes is more than the {} that are read",
                    MAX_MESSAGE_DATA
                );
                RpcResponse::error(StatusCode::ResourceExhausted, text)
            })
            .and_then(|data| {
                let invalid = |error| {
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
                } = RpcRequest::decode(data.as_slice()).map_err(invalid)?;
                // The payload is a copy. A part of Synchronize has 4 MiB.
                drop(data);
                PluginRequest::read(&service, &method, &payload)
                    .map_err(|error| error_response(&error))
            });
        match read {
            Ok(request) => self.handle_request(stream, request),
            Err(error) => {
                let text = error
                    .status
                    .as_ref()
                    .map(|status| status.message.as_str())
                    .unwrap_or_default();
                tracing::warn!("NRI: {text}");
                self.send(&error.encode(stream));
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
                    events: self.events.mask(),
                };
                self.send_payload(stream, events.encode_to_vec());
            }
            PluginRequest::Synchronize {
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
                if self.parts.bytes > MAX_SYNCHRONIZE_BYTES {
                    self.parts = SynchronizeParts::default();
                    return self.refuse_synchronize(
                        stream,
                        StatusCode::ResourceExhausted,
                        too_large_reason(),
                    );
                }
                if more {
                    let response = SynchronizeResponse {
                        update: Vec::new(),
                        more,
                    };
                    return self.send_payload(stream, response.encode_to_vec());
                }
                let SynchronizeParts {
                    pods, containers, ..
                } = std::mem::take(&mut self.parts);
                let limit = self.handler_timeout();
                let input = HandlerInput::Synchronize(pods, containers);
                self.waiting.push_back((
                    stream,
                    HandlerCall {
                        input,
                        limit,
                        deadline: since + limit,
                    },
                ));
            }
            PluginRequest::Event(event, request) if self.events.contains(event) => {
                let limit = self.handler_timeout();
                let input = HandlerInput::Event(event, request);
                self.waiting.push_back((
                    stream,
                    HandlerCall {
                        input,
                        limit,
                        deadline: Instant::now() + limit,
                    },
                ));
            }
            PluginRequest::Shutdown => {
                self.closing = self.closing.take().or(Some(Disconnect::Shutdown));
                self.send_payload(stream, Vec::new());
            }
            PluginRequest::Event(..) | PluginRequest::Other => {
                self.send_payload(stream, Vec::new());
            }
        }
    }

    /// How long a handler may take: the runtime wants an answer somewhat later.
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

    /// Sends the answer to a call.
    fn send_output(&mut self, stream: u32, answer: HandlerOutput) {
        match answer {
            HandlerOutput::Synchronized(Ok(payload)) => {
                if let Some(runtime) = &self.runtime {
                    publish(self.state, ConnectionState::Synchronized(runtime.clone()));
                }
                self.send_payload(stream, payload);
            }
            HandlerOutput::Synchronized(Err(refusal)) => {
                self.refuse_synchronize(stream, StatusCode::Unknown, refusal.to_string());
            }
            HandlerOutput::Event(Ok(payload)) => self.send_payload(stream, payload),
            HandlerOutput::Event(Err(refusal)) => {
                self.send(
                    &RpcResponse::error(StatusCode::Unknown, refusal.to_string()).encode(stream),
                );
            }
        }
    }

    /// Refuses Synchronize. The runtime closes the connection then; if not, nothing more would come.
    fn refuse_synchronize(&mut self, stream: u32, code: StatusCode, reason: String) {
        self.send(&RpcResponse::error(code, reason.clone()).encode(stream));
        self.closing = self
            .closing
            .take()
            .or(Some(Disconnect::SynchronizeRefused(reason)));
    }

    fn send_payload(&mut self, stream: u32, payload: Vec<u8>) {
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
        let limit = self.settings.registration_timeout;
        let request = RpcRequest {
            service: RUNTIME_SERVICE.to_owned(),
            method: "RegisterPlugin".to_owned(),
            payload: registration.encode_to_vec(),
            timeout_nanoseconds: i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX),
        };
        // A plugin's name is short, so the message is not too long.
        if let Some(message) = framing::encode_message(
            REGISTRATION_STREAM,
            MessageType::Request,
            &request.encode_to_vec(),
        ) {
            self.awaits_registration = true;
            self.send_on(RUNTIME_CHANNEL, &message);
        }
    }

    /// Handles the runtime's response to the registration. Other responses answer no call and are dropped.
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

/// The answer of the running handler. Waits forever if no handler runs.
async fn output_of(running: &mut Option<RunningHandler>) -> (u32, HandlerOutput) {
    let Some(handler) = running else {
        return std::future::pending().await;
    };
    let done = handler.await;
    *running = None;
    done
}

/// The refusal of a Synchronize that would need too much memory.
fn too_large_reason() -> String {
    format!(
        "the node's pods and containers need more than the {} MiB that are kept of them: shorten the pods' annotations and the \
         containers' arguments on this node",
        MAX_SYNCHRONIZE_BYTES >> 20
    )
}

/// The answer to a call that can't be served.
fn error_response(error: &RequestError) -> RpcResponse {
    let code = match error {
        RequestError::Unknown { .. } => StatusCode::Unimplemented,
        RequestError::InvalidRequest { .. } | RequestError::Missing(..) => {
            StatusCode::InvalidArgument
        }
    };
    RpcResponse::error(code, error.to_string())
}

/// Serves the runtime until it is told to stop; connects again, with growing waits, whenever there is no runtime.
///
/// Told to stop, it answers what it was asked before, and closes the connection. The runtime goes on without it.
pub async fn serve<P: Plugin>(
    settings: PluginSettings,
    plugin: Arc<P>,
    state: watch::Sender<ConnectionState>,
    stop: CancellationToken,
) {
    let (least, most) = settings.backoff;
    let mut wait = least;
    loop {
        let disconnect = tokio::select! {
            // Neither arm loses anything: a connection that comes about too late is closed.
            () = stop.cancelled() => Disconnect::Stopped,
            connected = UnixStream::connect(&settings.socket) => match connected {
                Ok(stream) => {
                    publish(&state, ConnectionState::Connecting);
                    let session = Session::new(&settings, Arc::clone(&plugin), &state, stop.clone());
                    session.run(stream).await
                }
                Err(error) => Disconnect::Unreachable {
                    socket: settings.socket.display().to_string(),
                    error: error.to_string(),
                },
            },
        };
        // A runtime that came as far as this is worth coming back to at once.
        if matches!(*state.borrow(), ConnectionState::Synchronized(_)) {
            wait = least;
        }
        let is_stopped = disconnect == Disconnect::Stopped;
        publish(&state, ConnectionState::Away(disconnect));
        if is_stopped {
            return;
        }
        tokio::select! {
            // It is only slept here.
            () = stop.cancelled() => return publish(&state, ConnectionState::Away(Disconnect::Stopped)),
            () = tokio::time::sleep(wait) => wait = (wait * 2).min(most),
        }
    }
}
