//! A runtime that breaks the protocol, and a plugin that is slow.

use std::time::Duration;

use pinfold::nri::{
    ConnectionState, Container, Disconnect, Event, HandlerTimeout, PluginSettings, PodSandbox,
};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::listening::{Behavior, RecordingPlugin, Serving};
use crate::runtime::{
    Changed, EventMessage, PLUGIN, Parser, REQUEST, RESPONSE, RUNTIME, Reply, ReplyStatus,
    StateChange, Synchronize, event_message, frame, message, request, soon,
};

const CREATE_AND_START: [Event; 2] = [Event::CreateContainer, Event::StartContainer];

fn plugin(behavior: Behavior) -> RecordingPlugin {
    RecordingPlugin {
        behavior,
        ..RecordingPlugin::subscribed_to(CREATE_AND_START)
    }
}

fn ps_event() -> Vec<u8> {
    event_message("ps-0", "ps").encode_to_vec()
}

#[tokio::test]
async fn the_plugin_waits_for_the_socket() {
    let mut serving = Serving::new(plugin(Behavior::AsRecorded));
    drop(serving.socket.accept().await);
    serving.socket.close();
    serving
        .away(
            |disconnect| matches!(disconnect, Disconnect::Unreachable { socket, .. } if socket.ends_with("nri.sock")),
        )
        .await;
    serving.socket.open();
    let mut runtime = serving.socket.accept().await;
    let registration = runtime.register().await;
    let (name, index, version) = (registration.name, registration.index, registration.version);
    assert_eq!(
        (name.as_str(), index.as_str(), version.as_str()),
        ("pf", "20", "v0.12.2")
    );
    assert_eq!(*serving.state.borrow(), ConnectionState::Connecting);
    assert_eq!(runtime.configure(0).await, 0b10_1000);
    assert!(
        matches!(&*serving.state.borrow(), ConnectionState::Registered(runtime) if runtime.to_string() == "fake 1.0")
    );
    assert_eq!(
        runtime.call("Synchronize", Vec::new()).await,
        Ok(Vec::new())
    );
    assert_eq!(serving.state.borrow().name(), "synchronized");
    serving.end().await;
}

#[tokio::test]
async fn a_registration_that_is_refused_is_tried_again() {
    let mut serving = Serving::new(plugin(Behavior::AsRecorded));
    for _ in 0..3 {
        let mut runtime = serving.socket.accept().await;
        let (stream, call) = runtime.called().await;
        assert_eq!(call.method, "RegisterPlugin");
        serving.socket.close();
        let status = ReplyStatus {
            code: 2,
            message: "invalid plugin index".to_owned(),
        };
        runtime
            .reply(
                stream,
                &Reply {
                    status: Some(status),
                    payload: Vec::new(),
                },
            )
            .await;
        // The plugin hangs up. The state shows the refusal before the failed reconnection.
        assert_eq!(runtime.next(PLUGIN).await, None);
        serving
            .away(|disconnect| {
                matches!(
                    disconnect,
                    Disconnect::RegistrationRefused { .. } | Disconnect::Unreachable { .. }
                )
            })
            .await;
        serving.socket.open();
    }
    serving.end().await;

    let mut serving = Serving::with(plugin(Behavior::AsRecorded), |settings| {
        settings.backoff = (Duration::from_secs(600), Duration::from_secs(600));
    });
    let mut runtime = serving.socket.accept().await;
    let (stream, _) = runtime.called().await;
    let status = ReplyStatus {
        code: 7,
        message: "go away".to_owned(),
    };
    runtime
        .reply(
            stream,
            &Reply {
                status: Some(status),
                payload: Vec::new(),
            },
        )
        .await;
    serving
        .away(|disconnect| {
            disconnect
                .to_string()
                .ends_with("refused the registration (7): go away")
        })
        .await;
    // The plugin stops at once during the backoff.
    serving.end().await;
}

#[tokio::test]
async fn the_plugin_disconnects_from_a_runtime_that_never_registers_or_configures() {
    for answers_registration in [false, true] {
        let mut serving = Serving::with(plugin(Behavior::AsRecorded), |settings| {
            settings.registration_timeout = Duration::from_millis(200);
            settings.backoff = (Duration::from_secs(600), Duration::from_secs(600));
        });
        let mut runtime = serving.socket.accept().await;
        // The ends stay open until the plugin disconnects.
        let mut ends = None;
        if answers_registration {
            let (stream, call) = runtime.called().await;
            assert_eq!(call.method, "RegisterPlugin");
            let reply = message(stream, RESPONSE, &Reply::default().encode_to_vec());
            let (reader, mut writer) = runtime.split();
            // On a slow machine, the plugin may have disconnected before the answer.
            let _ = writer.write_all(&frame(RUNTIME, &reply)).await;
            ends = Some((reader, writer));
        }
        serving
            .away(|disconnect| {
                *disconnect == Disconnect::RegistrationTimeout(Duration::from_millis(200))
            })
            .await;
        drop(ends);
        serving.end().await;
    }
}

#[tokio::test]
async fn a_handler_is_cancelled_when_the_runtime_dies_in_a_call() {
    let mut serving = Serving::new(plugin(Behavior::Hang));
    let mut runtime = serving.socket.synchronized(0).await;
    runtime.begin("StartContainer", ps_event()).await;
    while serving.plugin.event_log().len() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    serving.socket.close();
    drop(runtime);
    serving.away(|_| true).await;
    soon("the handler's end", async {
        while *serving.plugin.cancelled.lock().unwrap() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    serving.socket.open();
    let mut runtime = serving.socket.synchronized(0).await;
    assert_eq!(
        runtime.call("RemoveContainer", ps_event()).await,
        Ok(Vec::new())
    );
    assert!(
        serving.plugin.timeouts.lock().unwrap().is_empty(),
        "a timeout was reported after the runtime's death"
    );
    serving.end().await;
}

#[tokio::test]
async fn unknown_methods_are_answered_unimplemented() {
    let mut serving = Serving::new(plugin(Behavior::AsRecorded));
    let mut runtime = serving.socket.synchronized(0).await;
    let (code, text) = runtime
        .call("ValidateContainerAdjustment", ps_event())
        .await
        .unwrap_err();
    assert_eq!(code, 12);
    assert_eq!(
        text,
        "nri.pkg.api.v1alpha1.Plugin/ValidateContainerAdjustment is not implemented by this plugin"
    );
    runtime
        .send(&request(101, "Elsewhere", "CreateContainer", ps_event()))
        .await;
    assert_eq!(runtime.answer(101).await.unwrap_err().0, 12);
    // A malformed message, an event without a container, and a malformed request.
    assert_eq!(
        runtime
            .call("CreateContainer", vec![0xff])
            .await
            .unwrap_err()
            .0,
        3
    );
    assert_eq!(
        runtime
            .call("CreateContainer", Vec::new())
            .await
            .unwrap_err()
            .0,
        3
    );
    runtime
        .send(&frame(PLUGIN, &message(103, REQUEST, &[0xff; 9])))
        .await;
    assert_eq!(runtime.answer(103).await.unwrap_err().0, 3);
    // Messages of other kinds than request get no answer.
    runtime
        .send(&frame(
            PLUGIN,
            &[message(105, 2, b""), message(107, 3, b"data")].concat(),
        ))
        .await;
    assert!(runtime.call("CreateContainer", ps_event()).await.is_ok());
    serving.end().await;
}

#[tokio::test]
async fn unknown_channels_and_unsubscribed_events_are_ignored() {
    let mut serving = Serving::new(plugin(Behavior::AsRecorded));
    let mut runtime = serving.socket.synchronized(0).await;
    for channel in [0, 3, 77, u32::MAX] {
        runtime
            .send(&frame(channel, &message(1, REQUEST, &[7; 5000])))
            .await;
        runtime.send(&frame(channel, b"")).await;
    }
    for method in [
        "StopContainer",
        "PostCreateContainer",
        "RunPodSandbox",
        "UpdatePodSandbox",
        "PostUpdatePodSandbox",
    ] {
        assert_eq!(
            runtime.call(method, ps_event()).await,
            Ok(Vec::new()),
            "{method}"
        );
    }
    assert_eq!(
        serving.plugin.event_log(),
        ["synchronize: 0 pods, 0 containers"]
    );
    serving.end().await;
}

#[tokio::test]
async fn too_long_messages_are_refused_and_too_long_frames_disconnect() {
    let mut serving = Serving::new(plugin(Behavior::AsRecorded));
    let mut runtime = serving.socket.synchronized(0).await;
    // A message above 4 MiB in frames below the limit.
    let mut long = message(201, REQUEST, &vec![0; (4 << 20) + 1]);
    long.extend(message(203, REQUEST, b""));
    for part in long.chunks(1 << 20) {
        runtime.send(&frame(PLUGIN, part)).await;
    }
    let (code, text) = runtime.answer(201).await.unwrap_err();
    assert_eq!((code, text.contains("4194305 bytes")), (8, true), "{text}");
    assert_eq!(runtime.answer(203).await.unwrap_err().0, 12);
    assert!(runtime.call("StartContainer", ps_event()).await.is_ok());
    // A message just below the limit is accepted.
    let mut longest = event_message("ps-0", "ps");
    longest.container.as_mut().unwrap().args = vec!["x".repeat(4_190_000)];
    assert!(
        runtime
            .call("CreateContainer", longest.encode_to_vec())
            .await
            .is_ok()
    );

    serving.socket.close();
    runtime.send(&[0, 0, 0, 1, 0, 0x40, 0, 11]).await;
    assert_eq!(runtime.next(PLUGIN).await, None);
    serving.away(|_| true).await;
    serving.socket.open();
    serving.socket.synchronized(0).await;
    serving.end().await;
}

#[tokio::test]
async fn an_oversized_frame_is_reported_as_the_reason_of_the_disconnection() {
    let mut serving = Serving::with(plugin(Behavior::AsRecorded), |settings| {
        settings.backoff = (Duration::from_secs(600), Duration::from_secs(600));
    });
    let mut runtime = serving.socket.synchronized(0).await;
    runtime.send(&[0, 0, 0, 9, 0xff, 0xff, 0xff, 0xff]).await;
    serving
        .away(|disconnect| matches!(disconnect, Disconnect::InvalidResponse(reason) if reason.contains("4294967295 bytes on channel 9")))
        .await;
    serving.end().await;
}

#[tokio::test]
async fn after_a_timeout_the_plugin_chooses_the_answer() {
    answers_after_a_timeout().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_timeout_the_plugin_chooses_the_answer_with_threads() {
    answers_after_a_timeout().await;
}

/// Three quarters of the runtime's timeout.
const LIMIT: Duration = Duration::from_millis(300);

async fn answers_after_a_timeout() {
    for (behavior, strict, timeout) in [
        (Behavior::Hang, true, HandlerTimeout(LIMIT)),
        (Behavior::Hang, false, HandlerTimeout(LIMIT)),
    ] {
        let mut serving = Serving::new(RecordingPlugin {
            strict,
            ..plugin(behavior)
        });
        // The handler gets three quarters of the 400 ms.
        let mut runtime = serving.socket.synchronized(400).await;
        for method in ["CreateContainer", "StartContainer"] {
            let call = format!("{method} of default/ps-0 container ps");
            let refusal = format!("{call}: {timeout}");
            let answer = runtime.call(method, ps_event()).await;
            assert_eq!(
                answer,
                if strict {
                    Err((2, refusal))
                } else {
                    Ok(Vec::new())
                },
                "{behavior:?}"
            );
            assert_eq!(
                serving.plugin.timeouts.lock().unwrap().pop(),
                Some((call, timeout))
            );
        }
        assert_eq!(
            serving.state.borrow().name(),
            "synchronized",
            "the runtime keeps the plugin"
        );
        serving.end().await;
    }
}

#[tokio::test]
async fn a_refusal_reaches_the_runtime_unchanged() {
    let mut serving = Serving::new(plugin(Behavior::Refuse));
    let mut runtime = serving.socket.synchronized(0).await;
    let refused = Err((2, "no CPUs left on n-1: scale ps down".to_owned()));
    assert_eq!(runtime.call("CreateContainer", ps_event()).await, refused);
    assert_eq!(runtime.call("StartContainer", ps_event()).await, refused);
    // An older runtime sends the start as a StateChange.
    let start_event = event_message("ps-0", "ps");
    let state_change = |event| StateChange {
        event,
        pod: start_event.pod.clone(),
        container: start_event.container.clone(),
    };
    assert_eq!(
        runtime
            .call("StateChange", state_change(6).encode_to_vec())
            .await,
        refused
    );
    // Events without a subscription, events with a method of their own, and unknown later events are ignored.
    for event in [3, 4, 12, 13, 99, -1] {
        assert_eq!(
            runtime
                .call("StateChange", state_change(event).encode_to_vec())
                .await,
            Ok(Vec::new())
        );
    }
    let event_log = serving.plugin.event_log();
    let starts = event_log
        .iter()
        .filter(|line| line.starts_with("StartContainer ps-0/ps "))
        .count();
    assert_eq!((event_log.len(), starts), (4, 2), "{event_log:?}");
    serving.end().await;
}

#[tokio::test]
async fn synchronize_in_parts_is_complete_with_the_last_part() {
    let mut serving = Serving::new(RecordingPlugin::subscribed_to(Event::ALL));
    let mut runtime = serving.socket.accept().await;
    runtime.register().await;
    runtime.configure(2000).await;
    let part = |name: &str, more| {
        let part = event_message(name, "c");
        let (pods, containers) = (
            part.pod.into_iter().collect(),
            part.container.into_iter().collect(),
        );
        Synchronize {
            pods,
            containers,
            more,
        }
        .encode_to_vec()
    };
    for name in ["a", "b", "c"] {
        let answer = runtime.call("Synchronize", part(name, true)).await.unwrap();
        assert_eq!(
            Changed::decode(answer.as_slice()).unwrap(),
            Changed {
                update: Vec::new(),
                more: true
            }
        );
        assert_eq!(serving.state.borrow().name(), "registered");
        assert!(serving.plugin.event_log().is_empty());
    }
    let answer = runtime.call("Synchronize", part("d", false)).await.unwrap();
    assert_eq!(
        Changed::decode(answer.as_slice()).unwrap(),
        Changed::default()
    );
    assert_eq!(
        serving.plugin.event_log()[0],
        "synchronize: 4 pods, 4 containers"
    );
    let names = |pods: &[PodSandbox]| pods.iter().map(|pod| pod.name.clone()).collect::<Vec<_>>();
    assert_eq!(
        names(&serving.plugin.existing.lock().unwrap().0),
        ["a", "b", "c", "d"]
    );
    assert_eq!(serving.state.borrow().name(), "synchronized");

    // The runtime disappears between two parts. The next connection starts without the earlier parts.
    runtime.call("Synchronize", part("e", true)).await.unwrap();
    drop(runtime);
    serving.socket.synchronized(0).await;
    assert_eq!(
        serving.plugin.event_log().last().unwrap(),
        "synchronize: 0 pods, 0 containers"
    );
    serving.end().await;
}

/// A part of Synchronize with almost 4 MiB of variables.
fn long_part(name: &str, more: bool) -> Vec<u8> {
    let EventMessage { pod, container } = event_message(name, "c");
    let container = Container {
        env: vec!["x".repeat(4_190_000)],
        ..container.unwrap()
    };
    Synchronize {
        pods: pod.into_iter().collect(),
        containers: vec![container],
        more,
    }
    .encode_to_vec()
}

#[tokio::test]
async fn the_memory_limit_counts_containers_after_the_plugins_reduction() {
    let plugin = RecordingPlugin {
        drop_environments: true,
        ..RecordingPlugin::subscribed_to(Event::ALL)
    };
    let mut serving = Serving::new(plugin);
    let mut runtime = serving.socket.accept().await;
    runtime.register().await;
    runtime.configure(60_000).await;
    for number in 0..20 {
        let answer = runtime
            .call("Synchronize", long_part(&number.to_string(), number < 19))
            .await;
        assert!(answer.is_ok(), "part {number}: {answer:?}");
    }
    assert_eq!(
        serving.plugin.event_log()[0],
        "synchronize: 20 pods, 20 containers"
    );
    assert!(
        serving
            .plugin
            .existing
            .lock()
            .unwrap()
            .1
            .iter()
            .all(|container| container.env.is_empty())
    );
    serving.end().await;
}

#[tokio::test]
async fn a_synchronization_above_the_memory_limit_is_refused() {
    let mut serving = Serving::with(RecordingPlugin::subscribed_to(Event::ALL), |settings| {
        settings.backoff = (Duration::from_secs(600), Duration::from_secs(600));
    });
    let mut runtime = serving.socket.accept().await;
    runtime.register().await;
    runtime.configure(60_000).await;
    for number in 0..4 {
        assert!(
            runtime
                .call("Synchronize", long_part(&number.to_string(), true))
                .await
                .is_ok()
        );
    }
    let (code, words) = runtime
        .call("Synchronize", long_part("last", true))
        .await
        .unwrap_err();
    assert!(
        code == 8 && words.contains("more than the limit of 16 MiB"),
        "{code} {words}"
    );
    serving
        .away(
            |disconnect| matches!(disconnect, Disconnect::SynchronizeRefused(reason) if *reason == words),
        )
        .await;
    assert!(serving.plugin.event_log().is_empty());
    serving.end().await;
}

#[tokio::test]
async fn the_memory_limit_counts_the_overhead_of_short_strings() {
    let mut serving = Serving::new(RecordingPlugin::subscribed_to(Event::ALL));
    let mut runtime = serving.socket.accept().await;
    runtime.register().await;
    runtime.configure(60_000).await;
    let mut part = event_message("ps-0", "c");
    part.container.as_mut().unwrap().env = vec!["PET_A=1".to_owned(); 300_000];
    let EventMessage { pod, container } = part;
    let part = Synchronize {
        pods: pod.into_iter().collect(),
        containers: container.into_iter().collect(),
        more: false,
    };
    let answer = runtime.call("Synchronize", part.encode_to_vec()).await;
    assert!(
        matches!(&answer, Err((8, words)) if words.contains("more than the limit of 16 MiB")),
        "{answer:?}"
    );
    serving.end().await;
}

#[tokio::test]
async fn a_plugin_may_refuse_synchronize() {
    let plugin = RecordingPlugin {
        refuse_synchronize: true,
        ..plugin(Behavior::AsRecorded)
    };
    let mut serving = Serving::with(plugin, |settings| {
        settings.backoff = (Duration::from_secs(600), Duration::from_secs(600));
    });
    let mut runtime = serving.socket.accept().await;
    runtime.register().await;
    runtime.configure(0).await;
    assert_eq!(
        runtime.call("Synchronize", Vec::new()).await,
        Err((2, "not ready".to_owned()))
    );
    serving
        .away(|disconnect| *disconnect == Disconnect::SynchronizeRefused("not ready".to_owned()))
        .await;
    serving.end().await;
}

/// A runtime that comes and goes is another trouble than one whose pods are refused again and again.
#[tokio::test(start_paused = true)]
async fn only_refusals_in_a_row_wait_for_minutes() {
    let plugin = RecordingPlugin {
        refuse_synchronize: true,
        ..plugin(Behavior::AsRecorded)
    };
    let mut serving = Serving::with(plugin, |settings| {
        settings.refusal_wait = Duration::from_secs(15);
    });
    let mut waits = Vec::new();
    let mut before = tokio::time::Instant::now();
    for is_refused in [true, false, true, false, true, true, true] {
        let mut runtime = serving.socket.accept().await;
        waits.push(before.elapsed().as_secs());
        runtime.register().await;
        runtime.configure(60_000).await;
        if is_refused {
            assert!(runtime.call("Synchronize", Vec::new()).await.is_err());
        }
        before = tokio::time::Instant::now();
    }
    assert_eq!(waits, [0, 0, 0, 0, 0, 0, 15]);
    serving.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_repeats_waits_for_minutes() {
    let plugin = RecordingPlugin {
        refuse_synchronize: true,
        ..plugin(Behavior::AsRecorded)
    };
    let usual = PluginSettings::new("p", 0).refusal_wait;
    assert!(usual >= Duration::from_secs(60), "{usual:?}");
    // The test's patience is shorter.
    let mut serving = Serving::with(plugin, |settings| {
        settings.refusal_wait = Duration::from_secs(15);
    });
    let mut waits = Vec::new();
    let mut before = tokio::time::Instant::now();
    for _ in 0..4 {
        let mut runtime = serving.socket.accept().await;
        waits.push(before.elapsed().as_secs());
        runtime.register().await;
        runtime.configure(60_000).await;
        assert!(runtime.call("Synchronize", Vec::new()).await.is_err());
        before = tokio::time::Instant::now();
    }
    assert_eq!(waits, [0, 0, 15, 15]);
    serving.end().await;
}

#[tokio::test]
async fn a_shutdown_of_the_runtime_is_the_reported_reason() {
    let mut serving = Serving::with(plugin(Behavior::AsRecorded), |settings| {
        settings.backoff = (Duration::from_secs(600), Duration::from_secs(600));
    });
    let mut runtime = serving.socket.synchronized(0).await;
    assert_eq!(runtime.call("Shutdown", Vec::new()).await, Ok(Vec::new()));
    assert!(
        runtime.call("StartContainer", ps_event()).await.is_ok(),
        "calls after Shutdown are answered"
    );
    drop(runtime);
    serving
        .away(|disconnect| *disconnect == Disconnect::Shutdown)
        .await;
    serving.end().await;
}

#[tokio::test]
async fn received_requests_are_answered_after_stop() {
    let mut serving = Serving::new(plugin(Behavior::Slow));
    let mut runtime = serving.socket.synchronized(0).await;
    let first = runtime.begin("CreateContainer", ps_event()).await;
    while serving.plugin.event_log().len() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    serving.stop.cancel();
    assert!(runtime.answer(first).await.is_ok());
    assert_eq!(runtime.next(PLUGIN).await, None);
    serving.end().await;
}

#[tokio::test]
async fn calls_are_answered_in_the_order_of_arrival() {
    let mut serving = Serving::new(plugin(Behavior::Slow));
    let mut runtime = serving.socket.synchronized(0).await;
    let calls = [
        request(301, "Plugin", "CreateContainer", ps_event()),
        request(303, "Plugin", "StartContainer", ps_event()),
        request(
            305,
            "Plugin",
            "CreateContainer",
            event_message("ps-1", "ps").encode_to_vec(),
        ),
    ];
    runtime.send(&calls.concat()).await;
    for stream in [301, 303, 305] {
        assert!(runtime.answer(stream).await.is_ok());
    }
    let event_log = serving.plugin.event_log();
    let calls: Vec<String> = event_log[1..]
        .iter()
        .map(|line| line.split(" id=").next().unwrap().to_owned())
        .collect();
    assert_eq!(
        calls,
        [
            "CreateContainer ps-0/ps",
            "StartContainer ps-0/ps",
            "CreateContainer ps-1/ps"
        ]
    );
    serving.end().await;
}

/// The runtime sends 60,000 calls before reading an answer. No answer is lost, and the plugin's queue is bounded.
#[tokio::test]
async fn the_plugin_stops_reading_calls_while_answers_are_not_read() {
    const CALLS: u32 = 60_000;
    let mut serving = Serving::new(plugin(Behavior::AsRecorded));
    let runtime = serving.socket.synchronized(0).await;
    let (mut reader, mut writer) = runtime.split();
    let mut calls = Vec::new();
    for call in 0..CALLS {
        calls.extend(request(
            1001 + 2 * call,
            "Plugin",
            &"x".repeat(300),
            Vec::new(),
        ));
    }
    let writing = tokio::spawn(async move {
        writer.write_all(&calls).await.unwrap();
        writer
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(
        !writing.is_finished(),
        "the plugin read {CALLS} calls before an answer was read"
    );
    let (mut parser, mut chunk, mut next) = (Parser::default(), vec![0; 64 << 10], 1001);
    while next < 1001 + 2 * CALLS {
        let length = soon("answers", reader.read(&mut chunk)).await.unwrap();
        assert!(length > 0, "the plugin hung up");
        for frame in parser.push(&chunk[..length]) {
            assert_eq!(frame.stream, next);
            next += 2;
        }
    }
    drop(soon("the writer", writing).await.unwrap());
    serving.end().await;
}

#[tokio::test]
async fn the_plugin_disconnects_from_a_runtime_that_reads_no_answers() {
    let mut serving = Serving::with(plugin(Behavior::AsRecorded), |settings| {
        settings.backoff = (Duration::from_secs(600), Duration::from_secs(600));
    });
    let runtime = serving.socket.synchronized(0).await;
    let (_reader, mut writer) = runtime.split();
    let calls = request(1, "Plugin", &"x".repeat(300), Vec::new()).repeat(60_000);
    let writing = tokio::spawn(async move {
        // The plugin closes the connection during the write.
        let _ = writer.write_all(&calls).await;
    });
    serving
        .away(|disconnect| *disconnect == Disconnect::Stalled(Duration::from_secs(10)))
        .await;
    soon("the writer", writing).await.unwrap();
    serving.end().await;
}
