//! ttrpc: requests and responses on a channel, each a header of ten bytes and a protobuf message.
//!
//! The header is the length of the data and the number of the stream, both big-endian, the kind, and flags. A stream is one
//! call: its response carries the number of its request. Whoever opens a channel's calls counts them 1, 3, 5 and so on.
//!
//! We frame ourselves because there is little to frame. The `ttrpc` crate would run over two pipes of ours; but it is built
//! with `protoc` or brings a second protobuf library and its generator, and the sockets of virtual machines besides, and what
//! becomes of a request that nobody expects would be its choice.

use prost::Message as _;

use super::mux::fill;

/// The length of a message's header.
pub const HEADER: usize = 10;

/// The longest data.
pub const LONGEST: usize = 4 << 20;

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Asks.
    Request,
    /// Answers.
    Response,
    /// What this protocol does not use: data of a streaming call, and whatever comes to be.
    Other(u8),
}

// === impl Kind ===

impl From<u8> for Kind {
    fn from(number: u8) -> Self {
        match number {
            1 => Self::Request,
            2 => Self::Response,
            other => Self::Other(other),
        }
    }
}

impl From<Kind> for u8 {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Request => 1,
            Kind::Response => 2,
            Kind::Other(other) => other,
        }
    }
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The number of the call.
    pub stream: u32,
    /// What it is.
    pub kind: Kind,
    /// Its data; or how long they would be, where that is more than [`LONGEST`]. They are then skipped.
    pub data: Result<Vec<u8>, usize>,
}

/// Puts a channel's stream together to messages.
#[derive(Debug, Clone, Default)]
pub struct Decoder {
    header: [u8; HEADER],
    /// How much of the header is there.
    filled: usize,
    data: Vec<u8>,
    /// How much of the data is still to be skipped.
    skip: usize,
}

// === impl Decoder ===

impl Decoder {
    /// The next message in `bytes`, which are shortened by what was taken; `None` when they are used up.
    pub fn next(&mut self, bytes: &mut &[u8]) -> Option<Frame> {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        *bytes = bytes.get(skipped..).unwrap_or_default();
        self.filled += fill(self.header.get_mut(self.filled..), bytes);
        if self.filled < HEADER {
            return None;
        }
        let [a, b, c, d, e, f, g, h, kind, _flags] = self.header;
        let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        let stream = u32::from_be_bytes([e, f, g, h]);
        let data = if length > LONGEST {
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
        Some(Frame {
            stream,
            kind: kind.into(),
            data,
        })
    }

    /// Whether the stream may end here: nothing of a message is missing.
    pub fn is_between_messages(&self) -> bool {
        self.filled == 0 && self.skip == 0
    }
}

/// A message as bytes; `None` where its data are longer than [`LONGEST`].
pub fn encode(stream: u32, kind: Kind, data: &[u8]) -> Option<Vec<u8>> {
    let length = u32::try_from(data.len())
        .ok()
        .filter(|_| data.len() <= LONGEST)?;
    let mut message = Vec::with_capacity(HEADER + data.len());
    message.extend_from_slice(&length.to_be_bytes());
    message.extend_from_slice(&stream.to_be_bytes());
    message.extend_from_slice(&[kind.into(), 0]);
    message.extend_from_slice(data);
    Some(message)
}

/// What a request holds.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Request {
    /// The full name of the service.
    #[prost(string, tag = "1")]
    pub service: String,
    /// The name of the method.
    #[prost(string, tag = "2")]
    pub method: String,
    /// The method's own message.
    #[prost(bytes = "vec", tag = "3")]
    pub payload: Vec<u8>,
    /// How long the caller waits, in nanoseconds; 0 where it does not say.
    #[prost(int64, tag = "4")]
    pub timeout_nanoseconds: i64,
}

/// What a response holds.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Response {
    /// How it went; missing is as good as [`Code::Ok`].
    #[prost(message, optional, tag = "1")]
    pub status: Option<Status>,
    /// The method's own message.
    #[prost(bytes = "vec", tag = "2")]
    pub payload: Vec<u8>,
}

/// How a call went.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Status {
    /// A [`Code`], or another of gRPC's.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// The reason, for people.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// The codes that we send; they are gRPC's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// It went well.
    Ok = 0,
    /// It was refused, in the words of whoever refused.
    Unknown = 2,
    /// The request can't be read.
    InvalidArgument = 3,
    /// The message is too long.
    ResourceExhausted = 8,
    /// There is no such service or method.
    Unimplemented = 12,
}

// === impl Response ===

impl Response {
    /// An answer.
    pub fn answer(payload: Vec<u8>) -> Self {
        Self {
            status: None,
            payload,
        }
    }

    /// An error.
    pub fn error(code: Code, message: impl Into<String>) -> Self {
        Self {
            status: Some(Status {
                code: code as i32,
                message: message.into(),
            }),
            payload: Vec::new(),
        }
    }

    /// The payload, or why there is none.
    pub fn into_result(self) -> Result<Vec<u8>, Status> {
        match self.status {
            Some(status) if status.code != Code::Ok as i32 => Err(status),
            _ => Ok(self.payload),
        }
    }

    /// The whole message, as the answer to `stream`. One that would be too long becomes an error that says so.
    pub fn encode(&self, stream: u32) -> Vec<u8> {
        encode(stream, Kind::Response, &self.encode_to_vec()).unwrap_or_else(|| {
            let error = Self::error(
                Code::ResourceExhausted,
                "the answer is longer than a message can be",
            );
            encode(stream, Kind::Response, &error.encode_to_vec()).unwrap_or_default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<Frame> {
        let mut decoder = Decoder::default();
        let mut found = Vec::new();
        for mut part in parts {
            while let Some(frame) = decoder.next(&mut part) {
                found.push(frame);
            }
            assert!(part.is_empty());
        }
        assert!(decoder.is_between_messages());
        found
    }

    #[test]
    fn messages_come_back_however_they_arrive() {
        let of = |stream, kind, data: &[u8]| Frame {
            stream,
            kind,
            data: Ok(data.to_vec()),
        };
        let expected = [
            of(1, Kind::Request, b"question"),
            of(3, Kind::Response, b""),
            of(5, Kind::Other(3), &[9; 5000]),
        ];
        let stream: Vec<u8> = expected
            .iter()
            .flat_map(|frame| {
                encode(frame.stream, frame.kind, frame.data.as_ref().unwrap()).unwrap()
            })
            .collect();
        assert_eq!(frames([stream.as_slice()]), expected);
        assert_eq!(frames(stream.chunks(1)), expected);
        assert_eq!(frames(stream.chunks(11)), expected);
    }

    #[test]
    fn one_too_long_is_told_of_at_once_and_skipped() {
        assert_eq!(encode(1, Kind::Request, &vec![0; LONGEST + 1]), None);
        let mut stream = encode(1, Kind::Request, &vec![0; LONGEST]).unwrap();
        stream[..4].copy_from_slice(&u32::try_from(LONGEST + 1).unwrap().to_be_bytes());
        let mut decoder = Decoder::default();
        let mut header = &stream[..HEADER];
        let told = Frame {
            stream: 1,
            kind: Kind::Request,
            data: Err(LONGEST + 1),
        };
        assert_eq!(decoder.next(&mut header), Some(told));
        assert!(!decoder.is_between_messages());
        stream.push(0);
        stream.extend(encode(3, Kind::Request, b"next").unwrap());
        let mut rest = &stream[HEADER..];
        assert_eq!(decoder.next(&mut rest).unwrap().data.unwrap(), b"next");
    }

    #[test]
    fn answers_and_errors() {
        let back = |response: &Response| {
            let bytes = response.encode(7);
            let frame = frames([bytes.as_slice()]).remove(0);
            assert_eq!((frame.stream, frame.kind), (7, Kind::Response));
            Response::decode(frame.data.unwrap().as_slice())
                .unwrap()
                .into_result()
        };
        assert_eq!(back(&Response::answer(vec![1])), Ok(vec![1]));
        let error = back(&Response::error(Code::Unknown, "no")).unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (2, "no"));
        let fine = Response {
            status: Some(Status::default()),
            payload: vec![2],
        };
        assert_eq!(back(&fine), Ok(vec![2]));
        assert_eq!(
            back(&Response::answer(vec![0; LONGEST])).unwrap_err().code,
            8
        );
    }
}
