//! Port-forwards to agents: the rights, the kubelet's error, and a replaced pod.

use std::net::SocketAddr;
use std::time::Duration;

use pinfold::cluster::agents::{AgentRoute, Agents, PortForward};
use pinfold::cluster::{Api, ErrorKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::fakeapi::FakeApi;

const DEADLINE: Duration = Duration::from_secs(60);

/// The address of a server that repeats the received bytes after its name.
async fn echo(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut bytes = [0; 1024];
                while let Ok(count @ 1..) = stream.read(&mut bytes).await {
                    stream.write_all(name.as_bytes()).await.unwrap();
                    stream.write_all(&bytes[..count]).await.unwrap();
                }
            });
        }
    });
    address
}

/// A server with a person who has the rights of the Role `pinfold-portforward`, and the agents as the person sees them.
async fn start() -> (FakeApi, Agents) {
    let fake = FakeApi::start().await;
    fake.user("person-token", "person");
    fake.allow("person", &["list"], "", "pods", &[]);
    fake.allow("person", &["create", "get"], "", "pods/portforward", &[]);
    let client = fake.client("person-token");
    let agents = Agents::new(Api::new(client.clone(), DEADLINE), client, "pinfold");
    (fake, agents)
}

/// The response to a text on a new connection.
async fn respond(forward: PortForward, text: &str) -> std::io::Result<String> {
    let (mut forward, mut bytes) = (forward, [0; 1024]);
    forward.write_all(text.as_bytes()).await?;
    let mut response = String::new();
    while !response.ends_with(text) {
        match forward.read(&mut bytes).await? {
            0 => break,
            count => response.push_str(std::str::from_utf8(&bytes[..count]).unwrap()),
        }
    }
    Ok(response)
}

#[tokio::test]
async fn a_port_forward_reaches_the_pod_that_replaced_an_agents_pod() {
    let (fake, agents) = start().await;
    let first = fake.put_agent("pinfold-a", "n1", echo("a:").await);
    fake.put_agent("pinfold-b", "n2", echo("b:").await);
    let pods = agents.list(None).await.unwrap();
    let found: Vec<(&str, &str)> = pods
        .iter()
        .map(|pod| (pod.node.as_str(), pod.name.as_str()))
        .collect();
    assert_eq!(found, [("n1", "pinfold-a"), ("n2", "pinfold-b")]);
    assert!(pods.iter().all(|pod| pod.port == 9471));

    let route = AgentRoute::new(agents.clone(), pods[0].clone());
    let forward = route.connect().await.unwrap();
    assert_eq!(respond(forward, "one").await.unwrap(), "a:one");

    fake.remove(&first);
    fake.put_agent("pinfold-c", "n1", echo("c:").await);
    let forward = route.connect().await.unwrap();
    assert_eq!(respond(forward, "two").await.unwrap(), "c:two");
    let other = AgentRoute::new(agents, pods[1].clone());
    let forward = other.connect().await.unwrap();
    assert_eq!(respond(forward, "three").await.unwrap(), "b:three");
}

#[tokio::test]
async fn pods_that_do_not_run_are_left_out() {
    let (fake, agents) = start().await;
    let address = echo("").await;
    let mut pending = fake.put_agent("pinfold-a", "n1", address);
    pending["status"]["phase"] = "Pending".into();
    fake.put(&pending);
    let mut ending = fake.put_agent("pinfold-b", "n2", address);
    ending["metadata"]["deletionTimestamp"] = "2026-11-25T00:00:00Z".into();
    fake.put(&ending);
    assert!(agents.list(None).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_person_without_the_right_opens_no_port_forward() {
    let (fake, agents) = start().await;
    fake.put_agent("pinfold-a", "n1", echo("a:").await);
    let pod = agents.list(None).await.unwrap().remove(0);
    fake.forbid("person");
    fake.allow("person", &["get"], "", "pods/portforward", &[]);
    let route = AgentRoute::new(agents, pod);
    let failure = route.connect().await.unwrap_err();
    assert_eq!(failure.kind(), ErrorKind::Forbidden, "{failure}");
}

#[tokio::test]
async fn the_kubelets_error_is_the_error_of_the_connection() {
    let (fake, agents) = start().await;
    fake.put_agent("pinfold-a", "n1", echo("a:").await);
    let pod = agents.list(None).await.unwrap().remove(0);
    fake.stop_forward("pinfold-a");
    let forward = AgentRoute::new(agents, pod).connect().await.unwrap();
    let error = respond(forward, "one").await.unwrap_err().to_string();
    assert!(
        error.contains("failed to connect to localhost:9471"),
        "{error}"
    );
}
