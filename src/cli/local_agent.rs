//! The address of the agent on this host.

use std::net::SocketAddr;

use crate::agent::config::{Config, Overrides};
use crate::client::Endpoint;

/// The agent of this host: at the given address, or else at the one in the configuration.
///
/// # Errors
/// The configuration can't be read.
pub(super) fn local_agent(
    address: Option<SocketAddr>,
    overrides: Overrides,
) -> anyhow::Result<Endpoint> {
    let address = match address {
        Some(address) => address,
        None => Config::load(overrides)?.listen,
    };
    Ok(Endpoint::on_this_host(address))
}
