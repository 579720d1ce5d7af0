//! [`Link`]: one connection, from the registration to its end. One task owns it, and reads and writes side by side, so a
//! runtime that is slow to read holds up nobody else. Handlers run one after the other, in the order of the calls.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::adjust;
use super::answer::{Answer, Call, What};
use super::event::{Events, Request, RequestError, Runtime};
use super::message::{Container, PodSandbox};
use super::mux::{self, Demux};
use super::plugin::Plugin;
use super::serve::{Lost, Settings, State, tell};
use super::ttrpc::{self, Code, Frame, Kind, Response};
use super::updates::{Ask, Open, UpdateError};
use super::wire::{
    ConfigureResponse, RUNTIME_SERVICE, RegisterPluginRequest, SynchronizeResponse,
    UpdateContainersRequest, UpdateContainersResponse,
};

/// The version of NRI whose messages these are.
const VERSION: &str = "v0.12.2";

/// How much is read at a time.
const CHUNK: usize = 64 << 10;

/// How many calls may wait before no more are read, and how much may wait to be sent. Runtimes open one call at a time.
const WAITING: usize = 256;
const UNSENT: usize = 8 << 20;

/// How many of our own calls may be open.
const ASKED: usize = 256;

/// The most memory for the pods and reduced containers of Synchronize. A plugin holds several copies for a moment: the state
/// before, the new state, and what is made of either. All of them must fit into the 128 MiB of the agent's pod.
const SYNCHRONIZE: usize = 16 << 20;

/// The memory of a short text beside its letters: the text's own fields and the allocator's.
const TEXT: usize = 64;

/// The longest time for an answer that a runtime is believed.
const LONGEST_REQUEST: Duration = Duration::from_secs(600);

/// How long a runtime may read nothing while something waits to be sent.
const STALLED: Duration = Duration::from_secs(10);

/// What waits for a response of the runtime.
enum Pending {
    Registration,
    Update(oneshot::Sender<Result<Vec<String>, UpdateError>>),
}

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

/// One connection.
pub(super) struct Link<'a, P> {
    settings: &'a Settings,
    plugin: Arc<P>,
    events: Events,
    state: &'a watch::Sender<State>,
    stop: CancellationToken,
    demux: Demux,
    /// What comes on the two channels.
    requests: ttrpc::Decoder,
    responses: ttrpc::Decoder,
    /// What is still to be sent, and since when nobody has taken any of it.
    unsent: Vec<u8>,
    unsent_since: Instant,
    /// Calls that wait for their turn, and the one that has it.
    waiting: VecDeque<(u32, Call)>,
    running: JoinSet<(u32, Answer)>,
    pending: BTreeMap<u32, Pending>,
    /// The number of our next call.
    next: u32,
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
            requests: ttrpc::Decoder::default(),
            responses: ttrpc::Decoder::default(),
            unsent: Vec::new(),
            unsent_since: Instant::now(),
            waiting: VecDeque::new(),
            running: JoinSet::new(),
            pending: BTreeMap::new(),
            next: 1,
            parts: Parts::default(),
            runtime: None,
            registered_by: Some(Instant::now() + settings.registration),
            closing: None,
        }
    }

    /// Serves the connection until it ends; why it did. Calls that are still open are cancelled with it.
    pub(super) async fn run(mut self, stream: UnixStream, open: &mut Open<'_>) -> Lost {
        let (mut reader, mut writer) = stream.into_split();
        let registration = RegisterPluginRequest {
            name: self.settings.name.clone(),
            index: format!("{:02}", self.settings.index),
            version: VERSION.to_owned(),
        };
        let limit = self.settings.registration;
        self.ask(
            "RegisterPlugin",
            &registration.encode_to_vec(),
            limit,
            Pending::Registration,
        );
        let mut chunk = vec![0; CHUNK];
        loop {
            match self.turn(&mut reader, &mut writer, &mut chunk, open).await {
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
        open: &mut Open<'_>,
    ) -> Result<(), Lost> {
        if self.running.is_empty()
            && let Some((stream, call)) = self.waiting.pop_front()
        {
            let plugin = Arc::clone(&self.plugin);
            self.running
                .spawn(async move { (stream, call.answer(plugin).await) });
        }
        let idle = self.running.is_empty() && self.unsent.is_empty();
        if let Some(lost) = self.closing.take_if(|lost| idle && *lost != Lost::Shutdown) {
            return Err(lost);
        }
        let stopping = self.closing == Some(Lost::Stopped);
        let busy = self.waiting.len() >= WAITING || self.unsent.len() >= UNSENT;
        let registered_by = self.registered_by.unwrap_or(self.unsent_since);
        tokio::select! {
            // All arms are cancel safe: a read or a write that has not happened has not happened, a call that is not
            // joined stays in the set, and an update that is not received stays in the channel.
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
            Some(done) = self.running.join_next() => {
                // A call that was cancelled has nobody left to answer to; it can't panic.
                if let Ok((stream, answer)) = done {
                    self.answer(stream, answer);
                }
            }
            Some(asked) = open.asked.recv(), if !stopping => self.update(asked),
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
                mux::PLUGIN => {
                    while let Some(frame) = self.requests.next(&mut bytes) {
                        self.request(frame);
                    }
                }
                mux::RUNTIME => {
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
    fn request(&mut self, frame: Frame) {
        let Frame { stream, kind, data } = frame;
        if kind != Kind::Request {
            return tracing::debug!(
                "NRI: a message of kind {kind:?} on stream {stream} is left alone"
            );
        }
        let read = data
            .map_err(|length| {
                let says = format!(
                    "a message of {length} bytes is more than the {} that are read",
                    ttrpc::LONGEST
                );
                Response::error(Code::ResourceExhausted, says)
            })
            .and_then(|data| {
                let nonsense = |error| {
                    Response::error(Code::InvalidArgument, format!("no ttrpc request: {error}"))
                };
                let ttrpc::Request {
                    service,
                    method,
                    payload,
                    ..
                } = ttrpc::Request::decode(data.as_slice()).map_err(nonsense)?;
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
                    return self.refuse(stream, Code::ResourceExhausted, too_large());
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
                self.refuse(stream, Code::Unknown, refusal.to_string());
            }
            Answer::Event(Ok(payload)) => self.respond(stream, payload),
            Answer::Event(Err(refusal)) => {
                self.send(&Response::error(Code::Unknown, refusal.to_string()).encode(stream));
            }
        }
    }

    /// Refuses Synchronize. The runtime closes the connection then; if not, nothing more would come.
    fn refuse(&mut self, stream: u32, code: Code, reason: String) {
        self.send(&Response::error(code, reason.clone()).encode(stream));
        self.closing = self.closing.take().or(Some(Lost::Synchronize(reason)));
    }

    fn respond(&mut self, stream: u32, payload: Vec<u8>) {
        self.send(&Response::answer(payload).encode(stream));
    }

    fn send_on(&mut self, channel: u32, message: &[u8]) {
        if self.unsent.is_empty() {
            self.unsent_since = Instant::now();
        }
        mux::frame(channel, message, &mut self.unsent);
    }

    fn send(&mut self, message: &[u8]) {
        self.send_on(mux::PLUGIN, message);
    }

    /// Calls the runtime; whether the request fits into a message.
    fn ask(
        &mut self,
        method: &str,
        payload: &[u8],
        limit: Duration,
        pending: Pending,
    ) -> Option<Pending> {
        let request = ttrpc::Request {
            service: RUNTIME_SERVICE.to_owned(),
            method: method.to_owned(),
            payload: payload.to_vec(),
            timeout_nanoseconds: i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX),
        };
        let stream = self.next;
        let Some(message) = ttrpc::encode(stream, Kind::Request, &request.encode_to_vec()) else {
            return Some(pending);
        };
        self.next = self.next.wrapping_add(2);
        self.pending.insert(stream, pending);
        self.send_on(mux::RUNTIME, &message);
        None
    }

    /// Sends updates that nobody asked for.
    fn update(&mut self, ask: Ask) {
        let Ask {
            updates,
            limit,
            reply,
        } = ask;
        // Whoever gave up waiting makes room.
        self.pending
            .retain(|_, pending| !matches!(pending, Pending::Update(reply) if reply.is_closed()));
        let refused = if matches!(*self.state.borrow(), State::Synchronized(_))
            && self.pending.len() < ASKED
        {
            let request = UpdateContainersRequest {
                update: adjust::updates(updates),
            };
            self.ask(
                "UpdateContainers",
                &request.encode_to_vec(),
                limit,
                Pending::Update(reply),
            )
            .map(|pending| (pending, UpdateError::TooMany))
        } else {
            Some((Pending::Update(reply), UpdateError::Away))
        };
        if let Some((Pending::Update(reply), error)) = refused {
            // Whoever asked may have given up waiting.
            let _ = reply.send(Err(error));
        }
    }

    /// Sees to a response of the runtime.
    fn response(&mut self, frame: Frame) -> Result<(), Lost> {
        let Frame { stream, kind, data } = frame;
        let Some(pending) = self
            .pending
            .remove(&stream)
            .filter(|_| kind == Kind::Response)
        else {
            tracing::debug!("NRI: a message of kind {kind:?} on stream {stream} answers nothing");
            return Ok(());
        };
        let response = data
            .map_err(|length| format!("a response of {length} bytes"))
            .and_then(|data| Response::decode(data.as_slice()).map_err(|error| error.to_string()));
        match (pending, response) {
            (Pending::Registration, Err(nonsense)) => Err(Lost::Nonsense(nonsense)),
            (Pending::Registration, Ok(response)) => match response.into_result() {
                Err(status) => Err(Lost::Refused {
                    code: status.code,
                    message: status.message,
                }),
                Ok(_) => {
                    // The first question follows at once.
                    self.registered_by = self
                        .registered_by
                        .map(|_| Instant::now() + self.settings.registration);
                    Ok(())
                }
            },
            (Pending::Update(reply), response) => {
                let failed = response.map_err(UpdateError::Nonsense).and_then(failed);
                // Whoever asked may have given up waiting.
                let _ = reply.send(failed);
                Ok(())
            }
        }
    }
}

/// The containers that an update could not change.
fn failed(response: Response) -> Result<Vec<String>, UpdateError> {
    let payload = response.into_result()?;
    let response = UpdateContainersResponse::decode(payload.as_slice())
        .map_err(|error| UpdateError::Nonsense(error.to_string()))?;
    Ok(response
        .failed
        .into_iter()
        .map(|update| update.container_id)
        .collect())
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
fn refused(error: &RequestError) -> Response {
    let code = match error {
        RequestError::Unknown { .. } => Code::Unimplemented,
        RequestError::Nonsense { .. } | RequestError::Missing(..) => Code::InvalidArgument,
    };
    Response::error(code, error.to_string())
}
