//! Network namespaces on the real kernel. The tests need root, and fail with a message without it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests may fail the test"
)]

#[path = "support/gate.rs"]
mod gate;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use pinfold::host::netns::{NetError, Netns};
use pinfold::host::network_switch::NetworkSwitch;

const A: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

fn switch() -> NetworkSwitch {
    NetworkSwitch::new().unwrap()
}

/// Whether the tests may make network namespaces on this machine.
fn is_prepared() -> bool {
    gate::meant_for_this_machine("root, for network namespaces")
}

/// The interfaces in the calling thread's namespace.
fn interfaces() -> BTreeSet<String> {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    text.lines()
        .skip(2)
        .filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()))
        .collect()
}

/// The routes in the calling thread's namespace, as the kernel prints them.
fn routes() -> String {
    std::fs::read_to_string("/proc/thread-self/net/route").unwrap()
}

fn inode(netns: &Netns) -> u64 {
    nix::sys::stat::fstat(netns.as_fd()).unwrap().st_ino
}

/// Whether a thread or an open file on this machine holds the namespace.
fn is_held(inode: u64) -> bool {
    let name = format!("net:[{inode}]");
    let is_it = |path: std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|target| target.as_os_str() == name.as_str())
    };
    let entries = |path: std::path::PathBuf| {
        std::fs::read_dir(path)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
    };
    entries("/proc".into()).any(|process| {
        entries(process.join("task")).any(|task| is_it(task.join("ns/net")))
            || entries(process.join("fd")).any(is_it)
    })
}

fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_true() {
        assert!(Instant::now() < deadline, "timeout after 60 s: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn two_containers_communicate_without_changes_to_the_host() {
    if !is_prepared() {
        return;
    }
    let before = (interfaces(), routes());
    let mut switch = switch();
    let a = switch.join(A).unwrap();
    let b = switch.join(B).unwrap();
    assert_eq!(
        (interfaces(), routes()),
        before,
        "the host got an interface or a route"
    );
    assert_eq!(
        a.run(interfaces).unwrap(),
        BTreeSet::from(["eth0".to_owned(), "lo".to_owned()])
    );

    let listener = a.run(|| TcpListener::bind((A, 2222))).unwrap().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, from) = listener.accept().unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        (received.len(), from.ip())
    });
    let sent = vec![7_u8; 1 << 20];
    b.run(|| {
        TcpStream::connect((A, 2222))
            .unwrap()
            .write_all(&sent)
            .unwrap();
    })
    .unwrap();
    assert_eq!(server.join().unwrap(), (sent.len(), B.into()));

    // Each container has a private loopback, which is up.
    let own = b
        .run(|| {
            TcpListener::bind("127.0.0.1:2222")
                .unwrap()
                .local_addr()
                .unwrap()
        })
        .unwrap();
    b.run(|| assert!(TcpStream::connect(own).is_err(), "the listener was dropped"))
        .unwrap();
}

#[test]
fn all_namespaces_and_interfaces_are_removed() {
    if !is_prepared() {
        return;
    }
    let before = interfaces();
    let mut switch = switch();
    let a = switch.join(A).unwrap();
    let b = switch.join(B).unwrap();
    let (a_inode, b_inode) = (inode(&a), inode(&b));
    assert!(is_held(a_inode) && is_held(b_inode));

    drop(b);
    eventually("nobody holds b's namespace", || !is_held(b_inode));
    // The switch's namespace has no further handle. The kernel removes a's end of the pair only with the bridge's
    // namespace and all its links.
    assert!(a.run(interfaces).unwrap().contains("eth0"));
    drop(switch);
    eventually("a's eth0 is gone with the switch", || {
        !a.run(interfaces).unwrap().contains("eth0")
    });
    drop(a);
    eventually("nobody holds a's namespace", || !is_held(a_inode));
    assert_eq!(interfaces(), before);
}

#[test]
fn invalid_addresses_are_refused() {
    if !is_prepared() {
        return;
    }
    let mut switch = switch();
    let refused = |switch: &mut NetworkSwitch, address| match switch.join(address) {
        Err(NetError::Address { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    for odd in [
        Ipv4Addr::new(192, 168, 0, 1),
        Ipv4Addr::new(10, 1, 1, 0),
        Ipv4Addr::new(10, 1, 1, 255),
    ] {
        assert!(refused(&mut switch, odd).contains("10.x.y.1"));
    }
    switch.join(A).unwrap();
    assert!(refused(&mut switch, A).contains("another container"));
    assert!(refused(&mut switch, Ipv4Addr::new(10, 78, 0, 2)).contains("another /24"));
    switch.join(B).unwrap();
}
