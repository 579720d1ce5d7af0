//! A parameter server: holds one shard of the parameters and applies gradients as they come (asynchronous SGD).
//!
//! Shards are as TensorFlow makes them: rows of the embedding table by id modulo the number of
//! servers, dense tensors in turn. One thread reads each connection, and a pool of inter-op threads
//! works on the requests.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use super::Geometry;
use super::model::{initial_row, initial_tensor};
use super::progress::Progress;
use super::wire::{self, ServerReply, WireError, WorkerRequest};
use crate::text::counted;

/// Locks of the embedding table: enough that workers seldom wait for the same lock.
const STRIPES: usize = 64;

/// Step sizes of gradient descent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// The step size for the dense tensors.
    pub dense: f32,
    /// The step size for the embeddings. It is larger, because a row occurs in only a few examples,
    /// and the gradients are means over the batch.
    pub embedding: f32,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ServerOptions {
    /// Where to listen, as `host:port`.
    pub listen: String,
    pub geometry: Geometry,
    /// The index of the shard, from 0.
    pub shard: u32,
    pub shards: u32,
    /// Inter-op threads.
    pub threads: usize,
    pub rates: Rates,
}

/// Why a server could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum PsError {
    #[error(
        "can't listen on {address}: check that the container has the address and that the port is free"
    )]
    Listen {
        address: String,
        #[source]
        source: io::Error,
    },
    /// No more connections or threads.
    #[error("can't {operation}")]
    System {
        operation: &'static str,
        #[source]
        source: io::Error,
    },
}

#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    queue: Arc<Queue>,
    progress: Arc<Progress>,
}

/// The shard's parameters.
#[derive(Debug)]
pub(super) struct Parameters {
    shard: Shard,
    /// Row `id` is the shard's row `id / shards`; they are dealt to the stripes in turn.
    stripes: Vec<Mutex<Vec<f32>>>,
    /// The dense tensors of this shard.
    dense: Vec<Mutex<Vec<f32>>>,
}

/// Which part of the parameters the server holds, and how a gradient moves it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Shard {
    pub(super) geometry: Geometry,
    /// The index of the shard, from 0.
    pub(super) index: u32,
    pub(super) count: u32,
    pub(super) rates: Rates,
}

/// Requests that wait for a thread.
#[derive(Debug, Default)]
struct Queue {
    jobs: Mutex<VecDeque<ServerJob>>,
    arrived: Condvar,
}

#[derive(Debug)]
struct ServerJob {
    request: WorkerRequest,
    since: Instant,
    answer: Arc<Mutex<TcpStream>>,
}

// === impl Rates ===

impl Default for Rates {
    fn default() -> Self {
        Self {
            dense: 0.1,
            embedding: 5.0,
        }
    }
}

// === impl Server ===

impl Server {
    /// Listens, fills the parameters and starts the threads.
    ///
    /// # Errors
    ///
    /// See [`PsError`].
    pub fn bind(options: &ServerOptions, progress: Arc<Progress>) -> Result<Self, PsError> {
        let listener = TcpListener::bind(&options.listen).map_err(|source| PsError::Listen {
            address: options.listen.clone(),
            source,
        })?;
        let threads = options.threads;
        let parameters = Arc::new(Parameters::new(Shard {
            geometry: options.geometry,
            index: options.shard,
            count: options.shards,
            rates: options.rates,
        }));
        let queue = Arc::new(Queue::default());
        for index in 0..threads.max(1) {
            let (parameters, queue, progress) = (
                Arc::clone(&parameters),
                Arc::clone(&queue),
                Arc::clone(&progress),
            );
            start(format!("inter-op-{index}"), move || {
                work(&parameters, &queue, &progress);
            })?;
        }
        Ok(Self {
            listener,
            queue,
            progress,
        })
    }

    /// Where it listens, the port chosen by the kernel included.
    ///
    /// # Errors
    ///
    /// The kernel's, which is not to be expected.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until the process ends; returns only with an error.
    ///
    /// # Errors
    ///
    /// No more connections can be accepted.
    pub fn run(&self) -> Result<(), PsError> {
        loop {
            let (stream, _) = match self.listener.accept() {
                Ok(accepted) => accepted,
                // The worker closed the connection before the request was served.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(source) => {
                    return Err(PsError::System {
                        operation: "accept a connection",
                        source,
                    });
                }
            };
            let (queue, progress) = (Arc::clone(&self.queue), Arc::clone(&self.progress));
            start("connection".to_owned(), move || {
                if let Err(error) = read(stream, &queue, &progress) {
                    tracing::warn!(%error, "a worker's connection ended");
                }
            })?;
        }
    }
}

fn start(name: String, work: impl FnOnce() + Send + 'static) -> Result<(), PsError> {
    let started = thread::Builder::new().name(name).spawn(work);
    started.map(drop).map_err(|source| PsError::System {
        operation: "start a thread",
        source,
    })
}

/// Reads the requests of a connection until it ends.
fn read(mut stream: TcpStream, queue: &Queue, progress: &Progress) -> Result<(), WireError> {
    stream.set_nodelay(true)?;
    let answer = Arc::new(Mutex::new(stream.try_clone()?));
    loop {
        let (request, bytes) = match wire::receive::<WorkerRequest>(&mut stream) {
            Err(WireError::Closed) => return Ok(()),
            other => other?,
        };
        progress.received(bytes);
        queue.push(ServerJob {
            request,
            since: Instant::now(),
            answer: Arc::clone(&answer),
        });
    }
}

/// An inter-op thread's life.
fn work(parameters: &Parameters, queue: &Queue, progress: &Progress) {
    loop {
        let ServerJob {
            request,
            since,
            answer,
        } = queue.pop();
        let reply = parameters
            .serve(&request)
            .unwrap_or_else(ServerReply::Refused);
        let mut stream = answer.lock().unwrap_or_else(PoisonError::into_inner);
        match wire::send(&mut *stream, &reply) {
            Ok(bytes) => progress.sent(bytes),
            // The reading side notices and reports the end.
            Err(_) => drop(stream.shutdown(std::net::Shutdown::Both)),
        }
        progress.step(since.elapsed(), None);
    }
}

// === impl Queue ===

impl Queue {
    fn push(&self, job: ServerJob) {
        self.jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(job);
        self.arrived.notify_one();
    }

    fn pop(&self) -> ServerJob {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(job) = jobs.pop_front() {
                return job;
            }
            jobs = self
                .arrived
                .wait(jobs)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

// === impl Parameters ===

impl Parameters {
    pub(super) fn new(shard: Shard) -> Self {
        let geometry = shard.geometry;
        let mut stripes = vec![Vec::new(); STRIPES];
        let own = (0..geometry.rows()).filter(|row| row % shard.count == shard.index);
        for (row, stripe) in own.zip((0..STRIPES).cycle()) {
            stripes[stripe].extend(initial_row(&geometry, row));
        }
        let dense = (0..geometry.tensors().len()).zip((0..shard.count).cycle());
        let dense = dense.filter(|&(_, owner)| owner == shard.index);
        let dense = dense
            .map(|(tensor, _)| Mutex::new(initial_tensor(&geometry, tensor)))
            .collect();
        Self {
            shard,
            stripes: stripes.into_iter().map(Mutex::new).collect(),
            dense,
        }
    }

    /// Answers a request, or says why not.
    pub(super) fn serve(&self, request: &WorkerRequest) -> Result<ServerReply, String> {
        match request {
            WorkerRequest::Hello(geometry, shard, shards) => {
                let own = (&self.shard.geometry, &self.shard.index, &self.shard.count);
                if (geometry, shard, shards) != own {
                    return Err(format!(
                        "this server has {:?} as shard {} of {}: start servers and workers with the same shapes \
                         and the same list of servers",
                        own.0, own.1, own.2
                    ));
                }
                Ok(ServerReply::Done)
            }
            WorkerRequest::Pull { rows } => {
                let mut values = Vec::with_capacity(rows.len() * self.dim());
                for &row in rows {
                    self.with_row(row, |row| values.extend_from_slice(row))?;
                }
                let mut dense = Vec::new();
                for tensor in &self.dense {
                    dense.extend_from_slice(&tensor.lock().unwrap_or_else(PoisonError::into_inner));
                }
                Ok(ServerReply::Values {
                    rows: values,
                    dense,
                })
            }
            WorkerRequest::Push {
                rows,
                row_gradients,
                dense_gradients,
            } => {
                self.push(rows, row_gradients, dense_gradients)?;
                Ok(ServerReply::Done)
            }
        }
    }

    fn push(
        &self,
        rows: &[u32],
        row_gradients: &[f32],
        dense_gradients: &[f32],
    ) -> Result<(), String> {
        // Checked before anything is changed.
        if row_gradients.len() != rows.len() * self.dim() {
            return Err(format!(
                "the worker sent {} as the gradients of {}",
                counted(row_gradients.len(), "number"),
                counted(rows.len(), "row")
            ));
        }
        let lens = || {
            self.dense
                .iter()
                .map(|tensor| tensor.lock().unwrap_or_else(PoisonError::into_inner).len())
        };
        if dense_gradients.len() != lens().sum::<usize>() {
            return Err(format!(
                "the worker sent {} as the gradients of this shard",
                counted(dense_gradients.len(), "number")
            ));
        }
        if let Some(row) = rows.iter().find(|&&row| !self.owns(row)) {
            return Err(format!("row {row} is not in this shard"));
        }
        for (&row, gradient) in rows.iter().zip(row_gradients.chunks_exact(self.dim())) {
            self.with_row(row, |values| {
                descend(values, gradient, self.shard.rates.embedding);
            })?;
        }
        let mut rest = dense_gradients;
        for tensor in &self.dense {
            let mut tensor = tensor.lock().unwrap_or_else(PoisonError::into_inner);
            let (gradient, after) = rest.split_at(tensor.len());
            descend(&mut tensor, gradient, self.shard.rates.dense);
            rest = after;
        }
        Ok(())
    }

    fn dim(&self) -> usize {
        self.shard.geometry.dim as usize
    }

    fn owns(&self, row: u32) -> bool {
        row < self.shard.geometry.rows() && row % self.shard.count == self.shard.index
    }

    fn with_row(&self, row: u32, use_it: impl FnOnce(&mut [f32])) -> Result<(), String> {
        if !self.owns(row) {
            return Err(format!("row {row} is not in this shard"));
        }
        let local = (row / self.shard.count) as usize;
        let mut stripe = self.stripes[local % STRIPES]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        use_it(&mut stripe[local / STRIPES * self.dim()..][..self.dim()]);
        Ok(())
    }
}

fn descend(values: &mut [f32], gradient: &[f32], rate: f32) {
    for (value, slope) in values.iter_mut().zip(gradient) {
        *value -= rate * slope;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TINY: Geometry = Geometry {
        features: 3,
        vocabulary: 50,
        dim: 2,
        hidden: [4, 3],
        seed: 5,
    };

    fn shard(index: u32, count: u32) -> Parameters {
        Parameters::new(Shard {
            geometry: TINY,
            index,
            count,
            rates: Rates {
                dense: 0.5,
                embedding: 2.0,
            },
        })
    }

    fn pull(parameters: &Parameters, rows: &[u32]) -> (Vec<f32>, Vec<f32>) {
        match parameters.serve(&WorkerRequest::Pull {
            rows: rows.to_vec(),
        }) {
            Ok(ServerReply::Values { rows, dense }) => (rows, dense),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn shards_together_hold_every_parameter_once() {
        for shards in [1, 2, 3, 7] {
            let all: Vec<_> = (0..shards).map(|index| shard(index, shards)).collect();
            for row in 0..TINY.rows() {
                let owners = all.iter().filter(|shard| shard.owns(row)).count();
                assert_eq!(owners, 1);
                let owner = &all[(row % shards) as usize];
                assert_eq!(
                    pull(owner, &[row]).0,
                    initial_row(&TINY, row),
                    "row {row} of {shards}"
                );
            }
            let dense: usize = all.iter().map(|shard| pull(shard, &[]).1.len()).sum();
            assert_eq!(dense, TINY.tensors().iter().sum::<usize>());
        }
    }

    #[test]
    fn a_push_moves_against_the_gradient() {
        let parameters = shard(1, 2);
        let (row, dense) = pull(&parameters, &[7]);
        let push = WorkerRequest::Push {
            rows: vec![7],
            row_gradients: vec![1.0, -1.0],
            dense_gradients: vec![0.25; dense.len()],
        };
        assert_eq!(parameters.serve(&push), Ok(ServerReply::Done));
        let (moved_row, moved_dense) = pull(&parameters, &[7]);
        assert_eq!(moved_row, [row[0] - 2.0, row[1] + 2.0]);
        assert!(
            moved_dense
                .iter()
                .zip(&dense)
                .all(|(new, old)| *new == old - 0.125)
        );
    }

    #[test]
    fn a_senseless_request_is_refused_and_changes_nothing() {
        let parameters = shard(1, 2);
        let before = pull(&parameters, &[1, 149]);
        let dense = vec![1.0; before.1.len()];
        let push = |rows: &[u32], row_gradients: Vec<f32>, dense_gradients: Vec<f32>| {
            WorkerRequest::Push {
                rows: rows.to_vec(),
                row_gradients,
                dense_gradients,
            }
        };
        for request in [
            WorkerRequest::Pull { rows: vec![2] },
            WorkerRequest::Pull { rows: vec![151] },
            push(&[1, 2], vec![1.0; 4], dense.clone()),
            push(&[1], vec![1.0; 3], dense.clone()),
            push(&[1], vec![1.0; 2], vec![1.0]),
            WorkerRequest::Hello(TINY, 0, 2),
        ] {
            assert!(parameters.serve(&request).is_err(), "{request:?}");
        }
        assert_eq!(pull(&parameters, &[1, 149]), before);
        assert_eq!(
            parameters.serve(&WorkerRequest::Hello(TINY, 1, 2)),
            Ok(ServerReply::Done)
        );
    }
}
