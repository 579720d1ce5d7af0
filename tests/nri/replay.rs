//! The recorded messages of containerd, sent again: call by call, in one piece, byte by byte, and cut off at many
//! places.

use std::collections::BTreeMap;
use std::io::Read;

use pinfold::nri::{ConnectionState, Disconnect, Event};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::listening::{RecordingPlugin, Serving};
use crate::runtime::{Call, Frame, PLUGIN, Parser, REQUEST, RESPONSE, RUNTIME, Registration, soon};

const VERSIONS: [&str; 2] = ["2.1.9", "1.7.24"];

/// The recorded bytes of one side.
pub(crate) fn bytes(version: &str, name: &str) -> Vec<u8> {
    let path = crate::repository::here(&format!("tests/data/nri/containerd-{version}/{name}.bz2"));
    let mut bytes = Vec::new();
    bzip2::read::BzDecoder::new(std::fs::File::open(path).unwrap())
        .read_to_end(&mut bytes)
        .unwrap();
    bytes
}

/// The log of the recorded plugin.
fn event_log(version: &str) -> Vec<String> {
    let path = crate::repository::here(&format!("tests/data/nri/containerd-{version}/heard.txt"));
    std::fs::read_to_string(path)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

fn frames(bytes: &[u8]) -> Vec<Frame> {
    Parser::default().push(bytes)
}

/// The answers of the recorded plugin by stream number.
pub(crate) fn answers(version: &str) -> BTreeMap<u32, Vec<u8>> {
    let frames = frames(&bytes(version, "plugin-to-runtime"));
    let answers = frames.into_iter().filter(|frame| frame.channel == PLUGIN);
    answers.map(|frame| (frame.stream, frame.data)).collect()
}

/// The calls of the recorded plugin to the runtime by stream number.
fn plugin_calls(version: &str) -> BTreeMap<u32, Call> {
    let frames = frames(&bytes(version, "plugin-to-runtime"));
    let calls_of_plugin = frames.into_iter().filter(|frame| frame.channel == RUNTIME);
    calls_of_plugin
        .map(|frame| (frame.stream, Call::decode(frame.data.as_slice()).unwrap()))
        .collect()
}

fn is_closed(disconnect: &Disconnect) -> bool {
    matches!(
        disconnect,
        Disconnect::Closed | Disconnect::Broken(_) | Disconnect::Unreachable { .. }
    )
}

/// Every answer equals the answer of the protocol's official library byte for byte, and the event
/// logs are equal, too.
#[tokio::test]
async fn recorded_calls_get_the_recorded_answers() {
    for version in VERSIONS {
        let mut serving = Serving::new(RecordingPlugin::subscribed_to(Event::ALL));
        let mut runtime = serving.socket.accept().await;
        let (recorded, expected, calls_of_plugin) = (
            bytes(version, "runtime-to-plugin"),
            answers(version),
            plugin_calls(version),
        );
        let (mut sent, mut calls) = (0, 0);
        for frame in frames(&recorded) {
            // The recorded plugin also updated containers by calls of its own. Pinfold makes no such calls, and drops
            // the answers to them.
            if frame.channel == RUNTIME && frame.stream == 1 {
                let (stream, call) = runtime.called().await;
                let recorded_call = &calls_of_plugin[&stream];
                assert_eq!(
                    (&call.service, &call.method),
                    (&recorded_call.service, &recorded_call.method)
                );
                assert_eq!(call.payload, recorded_call.payload);
                assert_eq!(stream, frame.stream);
                assert!(call.timeout > 0);
            }
            runtime.send(&recorded[sent..frame.end]).await;
            sent = frame.end;
            if frame.channel == PLUGIN {
                let answer = runtime.next(PLUGIN).await.unwrap();
                assert_eq!((answer.stream, answer.kind), (frame.stream, RESPONSE));
                assert_eq!(
                    answer.data, expected[&frame.stream],
                    "{version}: call {}",
                    frame.stream
                );
                calls += 1;
            }
        }
        assert_eq!((sent, calls), (recorded.len(), expected.len()));
        assert_eq!(serving.plugin.event_log(), event_log(version), "{version}");
        let runtime = serving.state.borrow().runtime().cloned().unwrap();
        assert_eq!(
            *serving.state.borrow(),
            ConnectionState::Synchronized(runtime.clone())
        );
        assert_eq!(runtime.name, "containerd");
        assert!(runtime.version.starts_with(version));
        assert_eq!(
            runtime.request_timeout_ms,
            (version == "2.1.9").then_some(2000)
        );
        serving.end().await;
    }
}

/// The size of the received chunks changes neither the event log nor the answers.
#[tokio::test]
async fn the_chunk_size_changes_no_answer() {
    for (version, part) in VERSIONS
        .into_iter()
        .flat_map(|version| [(version, usize::MAX), (version, 1), (version, 4099)])
    {
        let mut serving = Serving::new(RecordingPlugin::subscribed_to(Event::ALL));
        let runtime = serving.socket.accept().await;
        let recorded = bytes(version, "runtime-to-plugin");
        let (mut reader, mut writer) = runtime.split();
        let writing = tokio::spawn(async move {
            for part in recorded.chunks(part.min(recorded.len())) {
                writer.write_all(part).await.unwrap();
            }
            writer
        });
        let mut expected: BTreeMap<u32, Vec<u8>> = answers(version);
        let (mut parser, mut chunk) = (Parser::default(), [0; 4096]);
        while !expected.is_empty() {
            let length = soon("an answer", reader.read(&mut chunk)).await.unwrap();
            assert!(
                length > 0,
                "the plugin hung up; unanswered calls: {:?}",
                expected.keys()
            );
            for frame in parser.push(&chunk[..length]) {
                if frame.channel == PLUGIN {
                    assert_eq!(frame.kind, RESPONSE);
                    assert_eq!(
                        Some(frame.data),
                        expected.remove(&frame.stream),
                        "{version}"
                    );
                } else {
                    let call = Call::decode(frame.data.as_slice()).unwrap();
                    let registration = Registration::decode(call.payload.as_slice()).unwrap();
                    assert_eq!(
                        (registration.name.as_str(), registration.index.as_str()),
                        ("pf", "20")
                    );
                }
            }
        }
        assert_eq!(serving.plugin.event_log(), event_log(version), "{version}");
        drop(soon("the writer", writing).await.unwrap());
        serving.end().await;
    }
}

/// The cut positions: around the start of every message and frame, and some positions between.
fn cuts(recorded: &[u8]) -> Vec<usize> {
    let ends = frames(recorded).into_iter().map(|frame| frame.end);
    let borders =
        ends.flat_map(|end| (end.saturating_sub(2)..end + 20).chain([end + 4104, end + 4105]));
    let between = (0..recorded.len()).step_by(997);
    let mut cuts: Vec<usize> = (0..20)
        .chain(borders)
        .chain(between)
        .filter(|cut| *cut <= recorded.len())
        .collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

/// For each cut, sends the bytes up to the cut and hangs up. The plugin must report the disconnection and reconnect.
async fn cut_off(recorded: &[u8], cuts: impl Iterator<Item = usize>) -> usize {
    let mut serving = Serving::new(RecordingPlugin::subscribed_to(Event::ALL));
    let mut cut_count = 0;
    for cut in cuts {
        let mut runtime = serving.socket.accept().await;
        serving
            .until("the connection", |state| {
                !matches!(state, ConnectionState::Away(_))
            })
            .await;
        runtime.send(&recorded[..cut]).await;
        // The socket is closed for a moment, so that the plugin stays disconnected until the test has seen the state.
        serving.socket.close();
        drop(runtime);
        serving.away(is_closed).await;
        serving.socket.open();
        cut_count += 1;
    }
    serving.end().await;
    cut_count
}

#[tokio::test]
async fn cut_off_at_every_byte_of_a_short_connection() {
    let recorded = bytes("2.1.9", "removal");
    assert_eq!(cut_off(&recorded, 0..=recorded.len()).await, 1375);
}

#[tokio::test]
async fn cut_off_around_every_message() {
    for version in VERSIONS {
        let recorded = bytes(version, "runtime-to-plugin");
        assert!(cut_off(&recorded, cuts(&recorded).into_iter()).await > 600);
    }
}

/// The decoders get every byte on its own, without a socket. Each recorded message is complete at
/// its last byte.
#[test]
fn complete_messages_are_decoded_at_every_byte() {
    use pinfold::nri::framing::{Demux, MessageDecoder};
    for version in VERSIONS {
        let recorded = bytes(version, "runtime-to-plugin");
        let expected = frames(&recorded);
        assert!(
            expected
                .iter()
                .filter(|frame| frame.kind == REQUEST)
                .count()
                > 20
        );
        let (mut demux, mut decoders) = (
            Demux::default(),
            [MessageDecoder::default(), MessageDecoder::default()],
        );
        let mut messages = 0;
        for (at, byte) in recorded.iter().enumerate() {
            let mut bytes = std::slice::from_ref(byte);
            while let Some(piece) = demux.next(&mut bytes).unwrap() {
                let mut bytes = piece.bytes;
                let decoder = &mut decoders[usize::from(piece.channel == RUNTIME)];
                while let Some(frame) = decoder.next(&mut bytes) {
                    let recorded_frame = &expected[messages];
                    assert_eq!(
                        (piece.channel, frame.stream),
                        (recorded_frame.channel, recorded_frame.stream)
                    );
                    assert_eq!(frame.data.as_ref(), Ok(&recorded_frame.data));
                    assert_eq!(at + 1, recorded_frame.end);
                    messages += 1;
                }
            }
        }
        assert_eq!(messages, expected.len());
    }
}
