//! Processes in a pod that send and receive a known amount, and peers outside of all pods.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pinfold::host::bpf::sockets::SocketTcpCounts;
use pinfold::host::file::Reader;
use pinfold::host::netns::Netns;
use pinfold::host::proc::{NetnsHandles, NetnsKey, Proc};
use pinfold::host::spawn::{Launcher, Process, Spawn, Stderr};

use crate::kernel::Kernel;

/// The number and size of the datagrams that a pod sends in [`udp`], and the same for received datagrams.
pub(crate) const DATAGRAMS: (u64, u64, u64, u64) = (50, 1000, 20, 500);

/// Bytes that a pod sends and receives in [`tcp`].
pub(crate) const STREAM: (u64, u64) = (3_000_000, 2_000_000);

/// The time limit of a peer for expected data. The scripts have the same limit.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a script in a cgroup and waits for the end.
pub(crate) fn run(kernel: &Kernel, cgroup: &str, network: Option<&Netns>, script: &str) {
    let launcher = Launcher::new().unwrap();
    let status = start(&launcher, kernel, cgroup, network, script)
        .wait()
        .unwrap();
    assert!(status.success(), "{status}: {script}");
}

/// Starts a script in a cgroup. It ends with the launcher, or at the drop of the process.
pub(crate) fn start(
    launcher: &Launcher,
    kernel: &Kernel,
    cgroup: &str,
    network: Option<&Netns>,
    script: &str,
) -> Process {
    let spawn = Spawn {
        program: "/bin/bash".into(),
        args: vec!["-c".into(), format!("set -eo pipefail; {script}").into()],
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        cgroup_procs: kernel.cgroups.procs_files(cgroup),
        netns: network.cloned(),
        stderr: Stderr::Inherit,
    };
    launcher.spawn(spawn).unwrap()
}

/// A process in the cgroup sends and receives [`DATAGRAMS`].
pub(crate) fn udp(kernel: &Kernel, cgroup: &str, networks: Option<(&Netns, &Netns)>, host: IpAddr) {
    let (count, size, replies, reply) = DATAGRAMS;
    let open = || {
        let socket = UdpSocket::bind((host, 0)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    };
    let socket = in_network(networks.map(|(_, peer)| peer), open);
    let port = socket.local_addr().unwrap().port();
    let peer = std::thread::spawn(move || {
        let mut buffer = [0; 2000];
        for _ in 0..count {
            let (length, from) = socket.recv_from(&mut buffer).unwrap();
            assert_eq!(length as u64, size);
            socket.connect(from).unwrap();
        }
        for _ in 0..replies {
            socket
                .send(&vec![7; usize::try_from(reply).unwrap()])
                .unwrap();
        }
    });
    let script = format!(
        "exec 3<>/dev/udp/{host}/{port}; for i in {{1..{count}}}; do printf '%{size}s' . >&3; done; \
         timeout 60 head -c {} <&3 >/dev/null",
        replies * reply
    );
    run(kernel, cgroup, networks.map(|(pod, _)| pod), &script);
    peer.join().unwrap();
}

/// A process in the cgroup sends and receives a [`STREAM`]. The peer closes first.
pub(crate) fn tcp(kernel: &Kernel, cgroup: &str, networks: Option<(&Netns, &Netns)>, host: IpAddr) {
    let (send, receive) = STREAM;
    let (address, peer) = peer(networks.map(|(_, peer)| peer), host, send, receive);
    let script = format!(
        "exec 3<>/dev/tcp/{host}/{}; head -c {send} /dev/zero >&3; timeout 60 cat <&3 >/dev/null",
        address.port()
    );
    run(kernel, cgroup, networks.map(|(pod, _)| pod), &script);
    peer.join().unwrap();
}

/// A server for one connection, which reads `read` bytes, writes `write` bytes, and closes.
fn peer(
    network: Option<&Netns>,
    host: IpAddr,
    read: u64,
    write: u64,
) -> (SocketAddr, JoinHandle<()>) {
    let listener = in_network(network, || TcpListener::bind((host, 0)).unwrap());
    let address = listener.local_addr().unwrap();
    let serve = move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut received = vec![0; usize::try_from(read).unwrap()];
        stream.read_exact(&mut received).unwrap();
        stream
            .write_all(&vec![7; usize::try_from(write).unwrap()])
            .unwrap();
    };
    (address, std::thread::spawn(serve))
}

fn in_network<T: Send>(network: Option<&Netns>, work: impl FnOnce() -> T + Send) -> T {
    match network {
        Some(network) => network.run(work).unwrap(),
        None => work(),
    }
}

/// A reading between two equal readings of the network, and the network's reading. If an
/// acknowledgement or a retransmission comes late, all are read again.
pub(crate) fn while_quiet<N: PartialEq, T>(
    network: impl Fn() -> N,
    mut read: impl FnMut() -> T,
) -> (N, T) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let before = network();
        let result = read();
        if network() == before {
            return (before, result);
        }
        assert!(Instant::now() < deadline, "the network is never quiet");
    }
}

/// TCP's counts in the network namespace of a process or thread.
pub(crate) fn tcp_counts(pid: i32) -> SocketTcpCounts {
    let (proc, mut reader) = (Proc::new(Path::new("/")), Reader::default());
    let (mut handles, key) = (NetnsHandles::new(0), NetnsKey { pid, number: 0 });
    let segments = handles.segments(&proc, key, &mut reader).unwrap();
    SocketTcpCounts {
        sent: segments.sent,
        retransmitted: segments.retransmitted,
        timeouts: handles.timeouts(&proc, key, &mut reader).unwrap(),
    }
}
