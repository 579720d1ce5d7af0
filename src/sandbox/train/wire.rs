//! The protocol between worker and parameter server: frames of a length, a kind and a body, all little-endian.
//!
//! A worker sends a request and waits for its answer before the next one. A frame that is too long, cut off or not
//! what its kind says is an error of the connection and of nothing else.

use std::io::{self, Read, Write};

use super::Geometry;

/// The longest frame, in bytes: far more than any batch needs, far less than would hurt.
pub const MAX_FRAME: usize = 64 << 20;

#[derive(Debug, Clone, PartialEq)]
pub enum WorkerRequest {
    /// A request for the job's geometry, the server's shard and the number of shards.
    Hello(Geometry, u32, u32),
    /// The values of these rows and of the shard's dense tensors.
    Pull {
        /// Row ids of the full table, all of this shard.
        rows: Vec<u32>,
    },
    /// Gradients to apply.
    Push {
        /// Row ids as in a pull.
        rows: Vec<u32>,
        /// `dim` numbers for each row.
        row_gradients: Vec<f32>,
        /// Gradients of the shard's dense tensors, concatenated.
        dense_gradients: Vec<f32>,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub enum ServerReply {
    /// To a hello or a push: done.
    Done,
    Values {
        /// `dim` numbers for each row asked for.
        rows: Vec<f32>,
        /// The shard's dense tensors, concatenated.
        dense: Vec<f32>,
    },
    /// Why the server refuses the request.
    Refused(String),
}

/// Why a message could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The connection ended between two messages.
    #[error("the other side closed the connection")]
    Closed,
    /// The connection broke.
    #[error("the connection broke")]
    Io(#[from] io::Error),
    /// A frame longer than [`MAX_FRAME`].
    #[error(
        "a frame of {0} bytes is longer than the limit {MAX_FRAME}: check that the other side is a pinfold trainer"
    )]
    TooLong(usize),
    /// The frame's content does not match its kind.
    #[error("malformed {0}: check that the other side is a pinfold trainer of this version")]
    Malformed(&'static str),
}

pub trait WireMessage: Sized {
    /// Appends kind and body.
    fn encode(&self, out: &mut Vec<u8>);

    /// Reads kind and body to the end.
    ///
    /// # Errors
    ///
    /// [`WireError::Malformed`].
    fn decode(frame: &[u8]) -> Result<Self, WireError>;
}

/// Writes a message, and says how many bytes that took.
///
/// # Errors
///
/// The connection's, or a message longer than [`MAX_FRAME`].
pub fn send(stream: &mut impl Write, message: &impl WireMessage) -> Result<u64, WireError> {
    let mut frame = vec![0; 4];
    message.encode(&mut frame);
    let body = frame.len() - 4;
    let length = u32::try_from(body)
        .ok()
        .filter(|_| body <= MAX_FRAME)
        .ok_or(WireError::TooLong(body))?;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    stream.write_all(&frame)?;
    Ok(frame.len() as u64)
}

/// Reads a message, and says how many bytes it took.
///
/// # Errors
///
/// See [`WireError`]. Memory is taken as bytes arrive, never for a length that is only claimed.
pub fn receive<M: WireMessage>(stream: &mut impl Read) -> Result<(M, u64), WireError> {
    let mut length = [0; 4];
    let got = stream.read(&mut length[..1])?;
    if got == 0 {
        return Err(WireError::Closed);
    }
    stream.read_exact(&mut length[1..])?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_FRAME {
        return Err(WireError::TooLong(length));
    }
    let mut frame = Vec::with_capacity(length.min(1 << 20));
    stream.take(length as u64).read_to_end(&mut frame)?;
    if frame.len() < length {
        return Err(WireError::Io(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok((M::decode(&frame)?, length as u64 + 4))
}

// === impl WorkerRequest ===

impl WireMessage for WorkerRequest {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello(geometry, shard, shards) => {
                let Geometry {
                    features,
                    vocabulary,
                    dim,
                    hidden: [first, second],
                    seed,
                } = *geometry;
                out.push(1);
                for value in [features, vocabulary, dim, first, second, *shard, *shards] {
                    out.extend(value.to_le_bytes());
                }
                out.extend(seed.to_le_bytes());
            }
            Self::Pull { rows } => {
                out.push(2);
                put(out, rows, |id| id.to_le_bytes());
            }
            Self::Push {
                rows,
                row_gradients,
                dense_gradients,
            } => {
                out.push(3);
                put(out, rows, |id| id.to_le_bytes());
                put(out, row_gradients, |value| value.to_le_bytes());
                put(out, dense_gradients, |value| value.to_le_bytes());
            }
        }
    }

    fn decode(frame: &[u8]) -> Result<Self, WireError> {
        let mut body = Body {
            rest: frame,
            what: "request",
        };
        let request = match body.byte()? {
            1 => {
                let mut word = || body.word();
                let (features, vocabulary, dim) = (word()?, word()?, word()?);
                let hidden = [word()?, word()?];
                let (shard, shards) = (word()?, word()?);
                let seed = u64::from(word()?) | u64::from(word()?) << 32;
                Self::Hello(
                    Geometry {
                        features,
                        vocabulary,
                        dim,
                        hidden,
                        seed,
                    },
                    shard,
                    shards,
                )
            }
            2 => Self::Pull {
                rows: body.list(u32::from_le_bytes)?,
            },
            3 => Self::Push {
                rows: body.list(u32::from_le_bytes)?,
                row_gradients: body.list(f32::from_le_bytes)?,
                dense_gradients: body.list(f32::from_le_bytes)?,
            },
            _ => return Err(WireError::Malformed("request")),
        };
        body.end()?;
        Ok(request)
    }
}

// === impl ServerReply ===

impl WireMessage for ServerReply {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Done => out.push(1),
            Self::Values { rows, dense } => {
                out.push(2);
                put(out, rows, |value| value.to_le_bytes());
                put(out, dense, |value| value.to_le_bytes());
            }
            Self::Refused(reason) => {
                out.push(3);
                out.extend(reason.as_bytes());
            }
        }
    }

    fn decode(frame: &[u8]) -> Result<Self, WireError> {
        let mut body = Body {
            rest: frame,
            what: "reply",
        };
        let reply = match body.byte()? {
            1 => Self::Done,
            2 => Self::Values {
                rows: body.list(f32::from_le_bytes)?,
                dense: body.list(f32::from_le_bytes)?,
            },
            3 => {
                return Ok(Self::Refused(
                    String::from_utf8_lossy(body.rest).into_owned(),
                ));
            }
            _ => return Err(WireError::Malformed("reply")),
        };
        body.end()?;
        Ok(reply)
    }
}

/// A list: the length, then items of four bytes.
fn put<T: Copy>(out: &mut Vec<u8>, items: &[T], bytes: impl Fn(T) -> [u8; 4]) {
    // A list too long for the length field makes a frame too long to send, which `send` refuses.
    out.extend(u32::try_from(items.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.reserve(items.len() * 4);
    for &item in items {
        out.extend_from_slice(&bytes(item));
    }
}

/// The rest of a frame.
struct Body<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl Body<'_> {
    fn byte(&mut self) -> Result<u8, WireError> {
        let (&byte, rest) = self
            .rest
            .split_first()
            .ok_or(WireError::Malformed(self.what))?;
        self.rest = rest;
        Ok(byte)
    }

    fn word(&mut self) -> Result<u32, WireError> {
        let (&bytes, rest) = self
            .rest
            .split_first_chunk()
            .ok_or(WireError::Malformed(self.what))?;
        self.rest = rest;
        Ok(u32::from_le_bytes(bytes))
    }

    fn list<T>(&mut self, item: impl Fn([u8; 4]) -> T) -> Result<Vec<T>, WireError> {
        let count = self.word()? as usize;
        let bytes = count
            .checked_mul(4)
            .filter(|&bytes| bytes <= self.rest.len());
        let (items, rest) = self
            .rest
            .split_at(bytes.ok_or(WireError::Malformed(self.what))?);
        self.rest = rest;
        Ok(items
            .as_chunks()
            .0
            .iter()
            .map(|&bytes| item(bytes))
            .collect())
    }

    fn end(&self) -> Result<(), WireError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(WireError::Malformed(self.what))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests() -> Vec<WorkerRequest> {
        vec![
            WorkerRequest::Hello(
                Geometry {
                    seed: u64::MAX - 3,
                    ..Geometry::default()
                },
                1,
                2,
            ),
            WorkerRequest::Pull { rows: vec![] },
            WorkerRequest::Pull {
                rows: vec![0, 5, u32::MAX],
            },
            WorkerRequest::Push {
                rows: vec![3],
                row_gradients: vec![1.5, -0.0],
                dense_gradients: vec![f32::MIN_POSITIVE],
            },
        ]
    }

    fn replies() -> Vec<ServerReply> {
        vec![
            ServerReply::Done,
            ServerReply::Values {
                rows: vec![1.0, 2.0],
                dense: vec![],
            },
            ServerReply::Refused("no such row".to_owned()),
        ]
    }

    fn check<M: WireMessage + PartialEq + std::fmt::Debug>(messages: &[M]) {
        let mut stream = Vec::new();
        let sent: u64 = messages
            .iter()
            .map(|message| send(&mut stream, message).unwrap())
            .sum();
        assert_eq!(sent, stream.len() as u64);
        let mut rest = &stream[..];
        for message in messages {
            assert_eq!(&receive::<M>(&mut rest).unwrap().0, message);
        }
        assert!(matches!(receive::<M>(&mut rest), Err(WireError::Closed)));
    }

    #[test]
    fn messages_come_back_as_they_went() {
        check(&requests());
        check(&replies());
    }

    #[test]
    fn a_frame_cut_anywhere_is_an_error() {
        for request in requests() {
            let mut whole = Vec::new();
            send(&mut whole, &request).unwrap();
            for end in 1..whole.len() {
                let cut = receive::<WorkerRequest>(&mut &whole[..end]);
                assert!(
                    matches!(cut, Err(WireError::Io(_))),
                    "{request:?} cut at {end}: {cut:?}"
                );
                // The same bytes in a frame that claims to be whole.
                if let Some(body) = whole.get(4..end) {
                    assert!(matches!(
                        WorkerRequest::decode(body),
                        Err(WireError::Malformed(_))
                    ));
                }
            }
            let mut longer = whole[4..].to_vec();
            longer.push(0);
            assert!(matches!(
                WorkerRequest::decode(&longer),
                Err(WireError::Malformed(_))
            ));
        }
    }

    #[test]
    fn a_claimed_length_is_not_believed() {
        let mut frame = u32::MAX.to_le_bytes().to_vec();
        assert!(matches!(
            receive::<WorkerRequest>(&mut &frame[..]),
            Err(WireError::TooLong(_))
        ));
        frame = u32::try_from(MAX_FRAME).unwrap().to_le_bytes().to_vec();
        assert!(matches!(
            receive::<WorkerRequest>(&mut &frame[..]),
            Err(WireError::Io(_))
        ));
        // A list that claims more items than the frame holds.
        let mut body = vec![2];
        body.extend(u32::MAX.to_le_bytes());
        assert!(matches!(
            WorkerRequest::decode(&body),
            Err(WireError::Malformed(_))
        ));
        assert!(matches!(
            WorkerRequest::decode(&[9]),
            Err(WireError::Malformed(_))
        ));
        assert!(matches!(
            ServerReply::decode(&[]),
            Err(WireError::Malformed(_))
        ));
    }

    #[test]
    fn a_message_too_long_is_not_sent() {
        let request = WorkerRequest::Pull {
            rows: vec![0; MAX_FRAME / 4 + 1],
        };
        let mut stream = Vec::new();
        assert!(matches!(
            send(&mut stream, &request),
            Err(WireError::TooLong(_))
        ));
        assert!(stream.is_empty());
    }
}
