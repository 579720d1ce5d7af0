//! Framing: the multiplexer, and ttrpc messages on its channels.
//!
//! # The multiplexer
//!
//! Two byte streams share one socket, and each frame names the channel to which it belongs.
//!
//! A frame is a header of eight bytes and a payload. The header holds the channel and the payload's
//! length, both big-endian. A payload is any part of the channel's stream, so the borders of frames
//! say nothing about the borders of messages. [`Demux`] therefore buffers no payload and passes all
//! bytes on at once. [`MessageDecoder`] buffers the data of a message, up to [`MAX_MESSAGE_DATA`].
//!
//! # ttrpc
//!
//! Requests and responses on a channel, each a header of ten bytes and a protobuf message.
//!
//! The header holds the length of the data and the number of the stream, both big-endian, then the
//! message type and flags. A stream is one call: a response carries the number of its request. The
//! caller of a channel numbers its calls 1, 3, 5 and so on.
//!
//! The framing is written by hand because it is small. The `ttrpc` crate could run over two pipes,
//! but it needs `protoc`, or a second protobuf library with a generator. It also brings virtual
//! machine sockets, and decides on its own how to answer unexpected requests.

use prost::Message as _;

/// The channel on which the runtime calls the plugin.
pub const PLUGIN_CHANNEL: u32 = 1;

/// The channel on which the plugin calls the runtime.
pub const RUNTIME_CHANNEL: u32 = 2;

/// The length of a frame's header.
pub const FRAME_HEADER_LEN: usize = 8;

/// The longest payload of a frame: the header and the data of the longest message.
pub const MAX_FRAME_PAYLOAD: usize = MESSAGE_HEADER_LEN + MAX_MESSAGE_DATA;

/// The longest first frame of a message. The runtimes' reader takes a frame in a single read or
/// fails, and its buffer for the start of a message has this length.
const MAX_FIRST_FRAME: usize = 4096;

/// A frame that is longer than every message of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a frame of {length} bytes on channel {channel}, more than the {MAX_FRAME_PAYLOAD} of the longest message"
)]
pub struct OversizedFrame {
    pub channel: u32,
    pub length: usize,
}

/// Bytes of a channel's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelBytes<'a> {
    pub channel: u32,
    /// The bytes; never empty.
    pub bytes: &'a [u8],
}

/// Splits the socket's stream into the bytes of each channel.
#[derive(Debug, Clone, Default)]
pub struct Demux {
    header: [u8; FRAME_HEADER_LEN],
    /// The number of header bytes in `header`.
    filled: usize,
    /// The current frame's channel, and the number of payload bytes still to come.
    channel: u32,
    left: usize,
}

// === impl Demux ===

impl Demux {
    /// The next bytes of a channel, removed from the front of `bytes`; `None` if `bytes` is used up.
    ///
    /// # Errors
    /// A frame is longer than any message, so the rest of the stream is unusable.
    pub fn next<'a>(
        &mut self,
        bytes: &mut &'a [u8],
    ) -> Result<Option<ChannelBytes<'a>>, OversizedFrame> {
        loop {
            if self.left > 0 {
                let (piece, rest) = bytes.split_at(self.left.min(bytes.len()));
                *bytes = rest;
                self.left -= piece.len();
                let piece = ChannelBytes {
                    channel: self.channel,
                    bytes: piece,
                };
                return Ok((!piece.bytes.is_empty()).then_some(piece));
            }
            self.filled += fill(self.header.get_mut(self.filled..), bytes);
            if self.filled < FRAME_HEADER_LEN {
                return Ok(None);
            }
            self.filled = 0;
            let [a, b, c, d, e, f, g, h] = self.header;
            self.channel = u32::from_be_bytes([a, b, c, d]);
            let length = u32::from_be_bytes([e, f, g, h]) as usize;
            if length > MAX_FRAME_PAYLOAD {
                return Err(OversizedFrame {
                    channel: self.channel,
                    length,
                });
            }
            self.left = length;
        }
    }
}

/// Moves as many bytes as fit from the front of `bytes`, and returns how many.
fn fill(into: Option<&mut [u8]>, bytes: &mut &[u8]) -> usize {
    let into = into.unwrap_or_default();
    let length = into.len().min(bytes.len());
    let (from, rest) = bytes.split_at(length);
    into.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    *bytes = rest;
    length
}

/// Appends a message to `into`, in frames that the runtimes' reader accepts.
pub fn append_frames(channel: u32, message: &[u8], into: &mut Vec<u8>) {
    let (first, rest) = message.split_at(message.len().min(MAX_FIRST_FRAME));
    for payload in [first, rest]
        .into_iter()
        .filter(|payload| !payload.is_empty())
    {
        // No message is longer than four MiB.
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        into.extend(channel.to_be_bytes());
        into.extend(length.to_be_bytes());
        into.extend(payload);
    }
}

/// The length of a message's header.
pub const MESSAGE_HEADER_LEN: usize = 10;

/// The most data of a message, in bytes.
pub const MAX_MESSAGE_DATA: usize = 4 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageType {
    Request,
    Response,
    /// A type that NRI does not use, such as the data of a streaming call.
    Other(u8),
}

// === impl MessageType ===

impl From<u8> for MessageType {
    fn from(number: u8) -> Self {
        match number {
            1 => Self::Request,
            2 => Self::Response,
            other => Self::Other(other),
        }
    }
}

impl From<MessageType> for u8 {
    fn from(kind: MessageType) -> Self {
        match kind {
            MessageType::Request => 1,
            MessageType::Response => 2,
            MessageType::Other(other) => other,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcMessage {
    /// The number of the call.
    pub stream: u32,
    pub kind: MessageType,
    /// The message's data. If they are longer than [`MAX_MESSAGE_DATA`], they are skipped, and only
    /// their length is kept.
    pub data: Result<Vec<u8>, usize>,
}

/// Assembles messages from a channel's stream.
#[derive(Debug, Clone, Default)]
pub struct MessageDecoder {
    header: [u8; MESSAGE_HEADER_LEN],
    /// The number of header bytes in `header`.
    filled: usize,
    data: Vec<u8>,
    /// The number of bytes still to skip.
    skip: usize,
}

// === impl MessageDecoder ===

impl MessageDecoder {
    /// The next message, removed from the front of `bytes`; `None` if `bytes` is used up.
    pub fn next(&mut self, bytes: &mut &[u8]) -> Option<RpcMessage> {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        *bytes = bytes.get(skipped..).unwrap_or_default();
        self.filled += fill(self.header.get_mut(self.filled..), bytes);
        if self.filled < MESSAGE_HEADER_LEN {
            return None;
        }
        let [a, b, c, d, e, f, g, h, kind, _flags] = self.header;
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        let stream = u32::from_be_bytes([e, f, g, h]);
        let data = if length > MAX_MESSAGE_DATA {
            self.skip = length;
            Err(length)
        } else {
            let missing = length.saturating_sub(self.data.len()).min(bytes.len());
            let (part, rest) = bytes.split_at(missing);
            self.data.extend_from_slice(part);
            *bytes = rest;
            if self.data.len() < length {
                return None;
            }
            Ok(std::mem::take(&mut self.data))
        };
        self.filled = 0;
        Some(RpcMessage {
            stream,
            kind: kind.into(),
            data,
        })
    }
}

/// A message as bytes; `None` if the data are longer than [`MAX_MESSAGE_DATA`].
pub fn encode_message(stream: u32, kind: MessageType, data: &[u8]) -> Option<Vec<u8>> {
    let length = u32::try_from(data.len())
        .ok()
        .filter(|_| data.len() <= MAX_MESSAGE_DATA)?;
    let mut message = Vec::with_capacity(MESSAGE_HEADER_LEN + data.len());
    message.extend(length.to_be_bytes());
    message.extend(stream.to_be_bytes());
    message.extend([u8::from(kind), 0]);
    message.extend(data);
    Some(message)
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RpcRequest {
    /// The full name of the service.
    #[prost(string, tag = 1)]
    pub service: String,
    #[prost(string, tag = 2)]
    pub method: String,
    /// The method's own message.
    #[prost(bytes = "vec", tag = 3)]
    pub payload: Vec<u8>,
    /// How long the caller waits, in nanoseconds; 0 for no limit.
    #[prost(int64, tag = 4)]
    pub timeout_nanoseconds: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RpcResponse {
    /// The outcome of the call. A missing status means [`StatusCode::Ok`].
    #[prost(message, optional, tag = 1)]
    pub status: Option<RpcStatus>,
    /// The method's own message.
    #[prost(bytes = "vec", tag = 2)]
    pub payload: Vec<u8>,
}

/// The outcome of a call.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RpcStatus {
    /// A [`StatusCode`], or another gRPC status code.
    #[prost(int32, tag = 1)]
    pub code: i32,
    /// The reason, as text.
    #[prost(string, tag = 2)]
    pub message: String,
}

/// The gRPC status codes that Pinfold sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusCode {
    /// The call succeeded.
    Ok = 0,
    /// A plugin refused the call. The message has its words.
    Unknown = 2,
    /// The request can't be read.
    InvalidArgument = 3,
    /// The message is too long.
    ResourceExhausted = 8,
    /// The service or the method is unknown.
    Unimplemented = 12,
}

// === impl RpcResponse ===

impl RpcResponse {
    pub fn answer(payload: Vec<u8>) -> Self {
        Self {
            status: None,
            payload,
        }
    }

    pub fn error(code: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status: Some(RpcStatus {
                code: code as i32,
                message: message.into(),
            }),
            payload: Vec::new(),
        }
    }

    /// The payload, or the error's status.
    pub fn into_result(self) -> Result<Vec<u8>, RpcStatus> {
        match self.status {
            Some(status) if status.code != StatusCode::Ok as i32 => Err(status),
            _ => Ok(self.payload),
        }
    }

    /// The response to `stream`, as bytes. If it is too long, it becomes an error response.
    pub fn encode(&self, stream: u32) -> Vec<u8> {
        let encode = |response: &Self| {
            let data = response.encode_to_vec();
            encode_message(stream, MessageType::Response, &data)
        };
        let too_long = || {
            let text = "the answer is longer than a message can be";
            encode(&Self::error(StatusCode::ResourceExhausted, text))
        };
        encode(self).or_else(too_long).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of each channel, from a stream that arrives in `parts`.
    fn channels<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<(u32, Vec<u8>)> {
        let mut demux = Demux::default();
        let mut all: Vec<(u32, Vec<u8>)> = Vec::new();
        for mut part in parts {
            while let Some(piece) = demux.next(&mut part).unwrap() {
                match all
                    .iter_mut()
                    .find(|(channel, _)| *channel == piece.channel)
                {
                    Some((_, bytes)) => bytes.extend_from_slice(piece.bytes),
                    None => all.push((piece.channel, piece.bytes.to_vec())),
                }
            }
            assert!(part.is_empty());
        }
        assert_eq!((demux.filled, demux.left), (0, 0));
        all
    }

    #[test]
    fn frames_arrive_whole_merged_and_in_single_bytes() {
        let long: Vec<u8> = (0..10_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let mut stream = Vec::new();
        append_frames(PLUGIN_CHANNEL, b"one", &mut stream);
        append_frames(RUNTIME_CHANNEL, &long, &mut stream);
        append_frames(7, b"", &mut stream);
        append_frames(PLUGIN_CHANNEL, b"two", &mut stream);
        let expected = vec![
            (PLUGIN_CHANNEL, b"onetwo".to_vec()),
            (RUNTIME_CHANNEL, long),
        ];
        assert_eq!(channels([stream.as_slice()]), expected);
        assert_eq!(channels(stream.chunks(1)), expected);
        assert_eq!(channels(stream.chunks(4095)), expected);
    }

    #[test]
    fn a_message_begins_with_a_frame_that_the_runtimes_buffer_holds() {
        for (length, frames) in [
            (1, vec![1]),
            (4096, vec![4096]),
            (4097, vec![4096, 1]),
            (20_000, vec![4096, 15_904]),
        ] {
            let (mut stream, mut lengths) = (Vec::new(), Vec::new());
            append_frames(PLUGIN_CHANNEL, &vec![7; length], &mut stream);
            let mut rest = stream.as_slice();
            while let Some((header, payload)) = rest.split_first_chunk::<FRAME_HEADER_LEN>() {
                let length = u32::from_be_bytes(header[4..].try_into().unwrap()) as usize;
                lengths.push(length);
                rest = &payload[length..];
            }
            assert_eq!(lengths, frames);
        }
    }

    #[test]
    fn an_empty_frame_is_skipped_and_an_oversized_frame_is_an_error() {
        let mut empty = [0, 0, 0, 1, 0, 0, 0, 0].as_slice();
        assert_eq!(Demux::default().next(&mut empty), Ok(None));
        let mut longest = [0, 0, 0, 1, 0, 0x40, 0, 10].as_slice();
        assert_eq!(Demux::default().next(&mut longest), Ok(None));
        let mut longer = [0, 0, 0, 9, 0, 0x40, 0, 11].as_slice();
        let error = Demux::default().next(&mut longer).unwrap_err();
        assert_eq!(
            error,
            OversizedFrame {
                channel: 9,
                length: MAX_FRAME_PAYLOAD + 1
            }
        );
    }

    fn frames<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<RpcMessage> {
        let mut decoder = MessageDecoder::default();
        let mut found = Vec::new();
        for mut part in parts {
            while let Some(frame) = decoder.next(&mut part) {
                found.push(frame);
            }
            assert!(part.is_empty());
        }
        assert_eq!((decoder.filled, decoder.skip), (0, 0));
        found
    }

    #[test]
    fn messages_decode_from_parts_of_any_size() {
        let of = |stream, kind, data: &[u8]| RpcMessage {
            stream,
            kind,
            data: Ok(data.to_vec()),
        };
        let expected = [
            of(1, MessageType::Request, b"question"),
            of(3, MessageType::Response, b""),
            of(5, MessageType::Other(3), &[9; 5000]),
        ];
        let stream: Vec<u8> = expected
            .iter()
            .flat_map(|frame| {
                encode_message(frame.stream, frame.kind, frame.data.as_ref().unwrap()).unwrap()
            })
            .collect();
        assert_eq!(frames([stream.as_slice()]), expected);
        assert_eq!(frames(stream.chunks(1)), expected);
        assert_eq!(frames(stream.chunks(11)), expected);
    }

    #[test]
    fn an_oversized_message_is_reported_at_once_and_skipped() {
        assert_eq!(
            encode_message(1, MessageType::Request, &vec![0; MAX_MESSAGE_DATA + 1]),
            None
        );
        let mut stream =
            encode_message(1, MessageType::Request, &vec![0; MAX_MESSAGE_DATA]).unwrap();
        stream[..4].copy_from_slice(&u32::try_from(MAX_MESSAGE_DATA + 1).unwrap().to_be_bytes());
        let mut decoder = MessageDecoder::default();
        let mut header = &stream[..MESSAGE_HEADER_LEN];
        let oversized = RpcMessage {
            stream: 1,
            kind: MessageType::Request,
            data: Err(MAX_MESSAGE_DATA + 1),
        };
        assert_eq!(decoder.next(&mut header), Some(oversized));
        assert_eq!(decoder.skip, MAX_MESSAGE_DATA + 1);
        stream.push(0);
        stream.extend(encode_message(3, MessageType::Request, b"next").unwrap());
        let mut rest = &stream[MESSAGE_HEADER_LEN..];
        assert_eq!(decoder.next(&mut rest).unwrap().data.unwrap(), b"next");
    }

    #[test]
    fn responses_and_errors_survive_encoding() {
        let back = |response: &RpcResponse| {
            let bytes = response.encode(7);
            let frame = frames([bytes.as_slice()]).remove(0);
            assert_eq!((frame.stream, frame.kind), (7, MessageType::Response));
            RpcResponse::decode(frame.data.unwrap().as_slice())
                .unwrap()
                .into_result()
        };
        assert_eq!(back(&RpcResponse::answer(vec![1])), Ok(vec![1]));
        let error = back(&RpcResponse::error(StatusCode::Unknown, "no")).unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (2, "no"));
        let fine = RpcResponse {
            status: Some(RpcStatus::default()),
            payload: vec![2],
        };
        assert_eq!(back(&fine), Ok(vec![2]));
        assert_eq!(
            back(&RpcResponse::answer(vec![0; MAX_MESSAGE_DATA]))
                .unwrap_err()
                .code,
            8
        );
    }
}
