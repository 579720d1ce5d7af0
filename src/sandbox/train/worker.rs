//! A worker: pulls the parameters of a batch, computes, pushes the gradients. Without servers, it
//! keeps the parameters itself.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use super::Geometry;
use super::data::{Batch, Clicks};
use super::model::Model;
use super::pool::ThreadPool;
use super::progress::Progress;
use super::ps::{Parameters, Rates, Shard};
use super::wire::{self, ServerReply, WireError, WorkerRequest};

/// The default of the longest wait for a lost server.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Pause between two attempts to reach a lost server.
const RETRY: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, PartialEq)]
pub struct WorkerOptions {
    /// The parameter servers, as `host:port`, in the order of their shards. If there are none, the
    /// worker keeps the parameters itself.
    pub ps_hosts: Vec<String>,
    /// The index of the worker, from 0.
    pub index: u32,
    pub geometry: Geometry,
    /// Examples of a step.
    pub batch: usize,
    /// Intra-op threads.
    pub threads: usize,
    /// The last step; `None` for no limit.
    pub steps: Option<u64>,
    /// How long a lost server is waited for.
    pub patience: Duration,
    /// Step sizes of a worker that keeps the parameters itself; a server has its own.
    pub rates: Rates,
}

/// Why a worker gave up.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// A server can't be reached any more, or yet.
    #[error("can't reach parameter server {host} for {} s: check that the server runs", patience.as_secs())]
    Lost {
        host: String,
        /// How long the worker has tried.
        patience: Duration,
        #[source]
        source: WireError,
    },
    /// The peer speaks another protocol.
    #[error("the connection to parameter server {host} failed")]
    Protocol {
        host: String,
        #[source]
        source: WireError,
    },
    /// A server refused a request.
    #[error("parameter server {host} refused: {reason}")]
    Refused { host: String, reason: String },
    /// The worker's own parameters do not fit a step, which would be a defect.
    #[error("the worker's own parameters refused a step: {0}")]
    OwnParameters(String),
    /// The intra-op threads could not be started.
    #[error("can't start {threads} intra-op threads")]
    Threads {
        /// How many were wanted.
        threads: usize,
        #[source]
        source: io::Error,
    },
}

#[derive(Debug)]
struct ServerConnections<'a> {
    options: &'a WorkerOptions,
    progress: &'a Progress,
    streams: Vec<TcpStream>,
}

/// Why an attempt failed, and at which server.
#[derive(Debug)]
struct AttemptFailure {
    shard: usize,
    cause: Cause,
}

#[derive(Debug)]
enum Cause {
    Wire(WireError),
    Refused(String),
}

/// Trains until the last step is done.
///
/// # Errors
///
/// See [`WorkerError`].
pub fn train(options: &WorkerOptions, progress: &Progress) -> Result<(), WorkerError> {
    let pool = ThreadPool::new(options.threads).map_err(|source| WorkerError::Threads {
        threads: options.threads,
        source,
    })?;
    let model = Model::new(options.geometry, pool);
    if options.ps_hosts.is_empty() {
        return train_alone(options, &model, progress);
    }
    let mut clicks = Clicks::new(options.geometry, options.index);
    let mut servers = ServerConnections {
        options,
        progress,
        streams: Vec::new(),
    };
    for _ in 0..options.steps.unwrap_or(u64::MAX) {
        let start = Instant::now();
        let batch = clicks.batch(options.batch);
        let mut lost_since = None;
        let loss = loop {
            let AttemptFailure { shard, cause } = match servers.step(&model, &batch) {
                Ok(loss) => break loss,
                Err(failure) => failure,
            };
            let host = options.ps_hosts.get(shard).cloned().unwrap_or_default();
            match cause {
                Cause::Refused(reason) => return Err(WorkerError::Refused { host, reason }),
                Cause::Wire(source @ (WireError::Io(_) | WireError::Closed)) => {
                    // All streams close, because a late answer in an open one could be taken for a
                    // new answer.
                    servers.streams.clear();
                    let patience = options.patience;
                    if lost_since.get_or_insert_with(Instant::now).elapsed() >= patience {
                        return Err(WorkerError::Lost {
                            host,
                            patience,
                            source,
                        });
                    }
                    thread::sleep(RETRY);
                }
                Cause::Wire(source) => return Err(WorkerError::Protocol { host, source }),
            }
        };
        progress.step(start.elapsed(), Some(loss));
    }
    Ok(())
}

/// Trains with the worker's own parameters: the same steps as with a single server, without sockets.
fn train_alone(
    options: &WorkerOptions,
    model: &Model,
    progress: &Progress,
) -> Result<(), WorkerError> {
    let mut clicks = Clicks::new(options.geometry, options.index);
    let parameters = Parameters::new(Shard {
        geometry: options.geometry,
        index: 0,
        count: 1,
        rates: options.rates,
    });
    let serve = |request: &WorkerRequest| {
        let reply = parameters.serve(request);
        reply.map_err(WorkerError::OwnParameters)
    };
    for _ in 0..options.steps.unwrap_or(u64::MAX) {
        let start = Instant::now();
        let batch = clicks.batch(options.batch);
        let rows = batch.rows.clone();
        let ServerReply::Values {
            rows: values,
            dense,
        } = serve(&WorkerRequest::Pull { rows })?
        else {
            return Err(WorkerError::OwnParameters("no values".to_owned()));
        };
        let gradients = model.step(&batch, &values, &dense);
        serve(&WorkerRequest::Push {
            rows: batch.rows,
            row_gradients: gradients.rows,
            dense_gradients: gradients.dense,
        })?;
        progress.step(start.elapsed(), Some(gradients.loss));
    }
    Ok(())
}

// === impl ServerConnections ===

impl ServerConnections<'_> {
    /// A step: pull, compute, push. Requests to all servers are in flight at the same time.
    fn step(&mut self, model: &Model, batch: &Batch) -> Result<f32, AttemptFailure> {
        self.connect()?;
        let shards = self.streams.len();
        let owned: Vec<Vec<u32>> = (0..shards)
            .map(|shard| {
                batch
                    .rows
                    .iter()
                    .copied()
                    .filter(|&row| row as usize % shards == shard)
                    .collect()
            })
            .collect();
        for (shard, rows) in owned.iter().enumerate() {
            self.send(shard, &WorkerRequest::Pull { rows: rows.clone() })?;
        }
        let mut values = Vec::with_capacity(shards);
        for shard in 0..shards {
            match self.receive(shard)? {
                ServerReply::Values { rows, dense } => values.push((rows, dense)),
                ServerReply::Done | ServerReply::Refused(_) => {
                    return Err(AttemptFailure::unexpected(shard));
                }
            }
        }
        let layout = ShardLayout {
            geometry: &self.options.geometry,
            batch,
            shards,
        };
        let (rows, dense) = layout.join(&values)?;

        let gradients = model.step(batch, &rows, &dense);

        let parts = layout.split(&gradients.rows, &gradients.dense);
        for (shard, (rows, (row_gradients, dense_gradients))) in
            owned.into_iter().zip(parts).enumerate()
        {
            self.send(
                shard,
                &WorkerRequest::Push {
                    rows,
                    row_gradients,
                    dense_gradients,
                },
            )?;
        }
        (0..shards).try_for_each(|shard| self.done(shard))?;
        Ok(gradients.loss)
    }

    fn connect(&mut self) -> Result<(), AttemptFailure> {
        if !self.streams.is_empty() {
            return Ok(());
        }
        let shards = u32::try_from(self.options.ps_hosts.len()).unwrap_or(u32::MAX);
        for (host, shard) in self.options.ps_hosts.iter().zip(0..) {
            let place = self.streams.len();
            let failed = |source| AttemptFailure {
                shard: place,
                cause: Cause::Wire(WireError::Io(source)),
            };
            let stream = open(host, self.options.patience).map_err(failed)?;
            self.streams.push(stream);
            self.send(
                place,
                &WorkerRequest::Hello(self.options.geometry, shard, shards),
            )?;
            self.done(place)?;
        }
        Ok(())
    }

    fn done(&mut self, shard: usize) -> Result<(), AttemptFailure> {
        match self.receive(shard)? {
            ServerReply::Done => Ok(()),
            ServerReply::Values { .. } | ServerReply::Refused(_) => {
                Err(AttemptFailure::unexpected(shard))
            }
        }
    }

    fn send(&mut self, shard: usize, request: &WorkerRequest) -> Result<(), AttemptFailure> {
        let sent = wire::send(&mut self.streams[shard], request);
        let bytes = sent.map_err(|source| AttemptFailure {
            shard,
            cause: Cause::Wire(source),
        })?;
        self.progress.sent(bytes);
        Ok(())
    }

    fn receive(&mut self, shard: usize) -> Result<ServerReply, AttemptFailure> {
        let received = wire::receive(&mut self.streams[shard]);
        let (reply, bytes) = received.map_err(|source| AttemptFailure {
            shard,
            cause: Cause::Wire(source),
        })?;
        self.progress.received(bytes);
        match reply {
            ServerReply::Refused(reason) => Err(AttemptFailure {
                shard,
                cause: Cause::Refused(reason),
            }),
            reply => Ok(reply),
        }
    }
}

impl AttemptFailure {
    fn unexpected(shard: usize) -> Self {
        Self {
            shard,
            cause: Cause::Wire(WireError::Malformed("reply")),
        }
    }
}

/// Opens a connection; a server that is silent for `patience` counts as lost.
fn open(host: &str, patience: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    // Every connection resolves the name again, because a restarted server may have another address.
    for address in host.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, Duration::from_secs(1)) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Which part of the parameters comes from which server.
struct ShardLayout<'a> {
    geometry: &'a Geometry,
    batch: &'a Batch,
    shards: usize,
}

/// A server's part: numbers of rows, and of dense tensors.
type ServerPart = (Vec<f32>, Vec<f32>);

impl ShardLayout<'_> {
    /// The batch's rows and all dense tensors, in order.
    fn join(&self, parts: &[ServerPart]) -> Result<ServerPart, AttemptFailure> {
        let dim = self.geometry.dim as usize;
        let mut rest: Vec<(&[f32], &[f32])> = parts
            .iter()
            .map(|(rows, dense)| (rows.as_slice(), dense.as_slice()))
            .collect();
        let mut rows = Vec::with_capacity(self.batch.rows.len() * dim);
        for &row in &self.batch.rows {
            let shard = row as usize % self.shards;
            let (values, after) = rest[shard]
                .0
                .split_at_checked(dim)
                .ok_or(AttemptFailure::unexpected(shard))?;
            rows.extend_from_slice(values);
            rest[shard].0 = after;
        }
        let mut dense = Vec::with_capacity(self.geometry.tensors().iter().sum());
        for (len, shard) in self
            .geometry
            .tensors()
            .into_iter()
            .zip((0..self.shards).cycle())
        {
            let (values, after) = rest[shard]
                .1
                .split_at_checked(len)
                .ok_or(AttemptFailure::unexpected(shard))?;
            dense.extend_from_slice(values);
            rest[shard].1 = after;
        }
        match rest
            .iter()
            .position(|(rows, dense)| !rows.is_empty() || !dense.is_empty())
        {
            Some(shard) => Err(AttemptFailure::unexpected(shard)),
            None => Ok((rows, dense)),
        }
    }

    /// The inverse of [`ShardLayout::join`].
    fn split(&self, rows: &[f32], dense: &[f32]) -> Vec<ServerPart> {
        let mut parts = vec![ServerPart::default(); self.shards];
        for (&row, values) in self
            .batch
            .rows
            .iter()
            .zip(rows.chunks_exact(self.geometry.dim as usize))
        {
            parts[row as usize % self.shards]
                .0
                .extend_from_slice(values);
        }
        let mut rest = dense;
        for (len, shard) in self
            .geometry
            .tensors()
            .into_iter()
            .zip((0..self.shards).cycle())
        {
            let (values, after) = rest.split_at(len);
            parts[shard].1.extend_from_slice(values);
            rest = after;
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_parameters_split_into_the_same_parts() {
        let geometry = Geometry {
            features: 3,
            vocabulary: 10,
            dim: 2,
            hidden: [4, 3],
            seed: 1,
        };
        let batch = Clicks::new(geometry, 0).batch(6);
        let numbers = |count: usize| (0_u16..).take(count).map(f32::from).collect::<Vec<f32>>();
        let rows = numbers(batch.rows.len() * 2);
        let dense = numbers(geometry.tensors().iter().sum());
        for shards in [1, 2, 3, 8] {
            let layout = ShardLayout {
                geometry: &geometry,
                batch: &batch,
                shards,
            };
            let mut parts = layout.split(&rows, &dense);
            assert_eq!(
                layout.join(&parts).unwrap(),
                (rows.clone(), dense.clone()),
                "{shards} shards"
            );
            // A server that answers too little or too much is found out.
            parts[0].1.push(0.0);
            assert!(layout.join(&parts).is_err());
            parts[0].1.truncate(1);
            assert!(layout.join(&parts).is_err());
        }
    }
}
