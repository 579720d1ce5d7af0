//! Ports of RDMA devices: the node's ports, and a pod's own ports.

use pinfold::metrics::Format;

use crate::node::page;

#[test]
fn a_device_is_the_nodes_or_one_pods() {
    let text = page().text(Format::Text);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("_rdma_") && !line.starts_with('#'))
        .collect();
    for line in [
        "pinfold_node_rdma_port_transmit_bytes_total{device=\"mlx5_0\",port=\"1\"} 40000",
        "pinfold_node_rdma_port_receive_bytes_total{device=\"mlx5_0\",port=\"1\"} 80000",
        "pinfold_node_rdma_port_transmit_packets_total{device=\"mlx5_0\",port=\"1\"} 30",
        "pinfold_node_rdma_port_events_total{device=\"mlx5_0\",port=\"1\",event=\"xmit_wait\"} 5",
        "pinfold_node_rdma_port_events_total{device=\"mlx5_0\",port=\"1\",event=\"link_downed\"} 1",
        "pinfold_node_rdma_port_hardware_events_total{device=\"mlx5_0\",port=\"1\",counter=\"out_of_sequence\"} 2",
        "pinfold_node_rdma_port_state{device=\"mlx5_0\",port=\"1\",state=\"ACTIVE\"} 1",
        "pinfold_pod_rdma_port_transmit_bytes_total{namespace=\"train\",pod=\"ps-0\",device=\"mlx5_7\",port=\"1\"} 8000",
    ] {
        assert!(lines.contains(&line), "{line} is not among {lines:#?}");
    }
    // The counts of a shared device belong to no pod, and a missing count is not zero. A pod on the node's network has no
    // own namespace.
    let pods = lines.iter().filter(|line| line.starts_with("pinfold_pod_"));
    assert_eq!(
        pods.filter(|line| !line.contains("mlx5_7")).count(),
        0,
        "{lines:#?}"
    );
    assert!(
        !text.contains("VL15_dropped") && !text.contains("mlx5_3"),
        "{lines:#?}"
    );
}
