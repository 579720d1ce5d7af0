//! Port-forwards: the server's WebSocket, and the kubelet that connects to a port.

use std::io;
use std::sync::Arc;

use futures_util::{SinkExt, StreamExt};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::SharedState;
use super::http::{Payload, answer};

/// The channel of the data, and the channel of the kubelet's error.
const DATA: u8 = 0;
const ERROR: u8 = 1;

/// Answers a request. A permitted port-forward becomes a WebSocket.
pub(crate) async fn serve(
    shared: &Arc<SharedState>,
    mut request: Request<Incoming>,
) -> io::Result<Response<Payload>> {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    let key = request.headers().get("sec-websocket-key").cloned();
    let upgrade = hyper::upgrade::on(&mut request);
    let response = answer(shared, request).await?;
    let (Some(pod), Some(key)) = (path.strip_suffix("/portforward"), key) else {
        return Ok(response);
    };
    if response.status() != 200 {
        return Ok(response);
    }
    let pod = pod.rsplit('/').next().unwrap_or_default().to_owned();
    let ports = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("ports="));
    let port: u16 = ports.and_then(|port| port.parse().ok()).unwrap_or(0);
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        if let Ok(upgraded) = upgrade.await {
            tunnel(&shared, upgraded, &pod, port).await;
        }
    });
    Ok(Response::builder()
        .status(101)
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-accept", derive_accept_key(key.as_bytes()))
        .header("sec-websocket-protocol", "v4.channel.k8s.io")
        .body(Payload::Whole(None))
        .unwrap())
}

fn frame(channel: u8, bytes: &[u8]) -> Message {
    let mut frame = vec![channel];
    frame.extend(bytes);
    Message::binary(frame)
}

/// Copies between the WebSocket and the port of a pod, until both sides have ended.
async fn tunnel(shared: &SharedState, upgraded: Upgraded, pod: &str, port: u16) {
    let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
    let (mut sink, mut frames) = socket.split();
    for channel in [DATA, ERROR] {
        let _ = sink.send(frame(channel, &port.to_le_bytes())).await;
    }
    let address = shared
        .forwards
        .lock()
        .unwrap()
        .get(&(pod.to_owned(), port))
        .copied();
    let stream = match address {
        Some(address) => TcpStream::connect(address).await.ok(),
        None => None,
    };
    let Some(stream) = stream else {
        let text = format!("failed to connect to localhost:{port} inside namespace of pod {pod}");
        let _ = sink.send(frame(ERROR, text.as_bytes())).await;
        let _ = sink.send(Message::Close(None)).await;
        return;
    };
    let (mut from_pod, mut to_pod) = stream.into_split();
    let up = async {
        // The stream ends with the client's close message.
        while let Some(Ok(message)) = frames.next().await {
            let Message::Binary(bytes) = message else {
                continue;
            };
            let Some(data) = bytes.strip_prefix(&[DATA]) else {
                continue;
            };
            if to_pod.write_all(data).await.is_err() {
                break;
            }
        }
        let _ = to_pod.shutdown().await;
    };
    let down = async {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count) = from_pod.read(&mut buffer).await {
            if count == 0 || sink.send(frame(DATA, &buffer[..count])).await.is_err() {
                break;
            }
        }
        let _ = sink.send(Message::Close(None)).await;
    };
    tokio::join!(up, down);
}
