//! NRI, the container runtimes' plugin protocol.
//!
//! containerd and CRI-O ask plugins before a container is created and started, and report later
//! changes. [`serve()`] is the plugin's half of the protocol, and a [`Plugin`] answers. The module
//! decides nothing and knows no policy.
//!
//! ```text
//!  the runtime's socket <──> serve (connects forever) ── ConnectionState ──> the agent
//!        │                     │
//!        │ mux: two channels   │ one task for a connection
//!        │ ttrpc: calls        │
//!        ▼                     ▼
//!   1 Plugin   the runtime calls ── PluginRequest ──> Plugin's handlers, each with a deadline
//!   2 Runtime  the plugin calls <── registration, the only call
//! ```
//!
//! | module | content |
//! |---|---|
//! | `proto` | messages of the protocol |
//! | [`framing`] | frames of the multiplexer, ttrpc messages |
//! | `event`, `adjust` | decoded requests, answers |
//! | `plugin` | the trait [`Plugin`] |
//! | `handler` | runs a handler with a deadline |
//! | `session` | the connection |
//! | `settings`, `state` | the plugin's settings, the state of the connection |
//! | `inventory`, `pods` | pods from a runtime's description |
//!
//! Responses to failures:
//!
//! | failure | response |
//! |---|---|
//! | no socket, a refused registration, a runtime that dies | [`ConnectionState::Away`] with the reason; more attempts, with growing waits |
//! | a handler over its deadline | cancelled; [`Plugin::unanswered`] answers, so the runtime keeps the plugin |
//! | an unknown method or service | the call is answered "unimplemented" |
//! | a call that can't be read | the call is answered "invalid argument"; the connection goes on |
//! | a message above 4 MiB | skipped, answered "resource exhausted"; the connection goes on |
//! | pods and containers that need more than 16 MiB after [`Plugin::reduce`] | Synchronize is refused, and the connection ends |
//! | a frame above 4 MiB | the end of the connection: the rest of the stream is unusable |
//! | an unknown channel | the channel's bytes are dropped |
//! | an event without a subscription, or from a newer protocol | answered by an empty message |
//! | a runtime that reads nothing for 10 s | the end of the connection |
//!
//! A runtime drops a plugin that does not answer in time (2 s by default), and goes on *without*
//! it, so containers are then created unadjusted. A handler's deadline is therefore three quarters
//! of the runtime's limit. The plugin chooses what is answered after the deadline.
//!
//! [`pod()`] makes a [`pod::Pod`](crate::pod::Pod) from a runtime's description, and is the only
//! part that knows pods of Kubernetes. An event names one container; an [`Inventory`] remembers the
//! pod's others.
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use pinfold::nri::{self, *};
//!
//! struct OnCpuZero;
//!
//! impl Plugin for OnCpuZero {
//!     fn events(&self) -> EventSet {
//!         [Event::CreateContainer].into()
//!     }
//!     fn unanswered(&self, _: &UnansweredCall<'_>, _: HandlerTimeout) -> Result<(), Refusal> {
//!         Ok(())
//!     }
//!     async fn synchronize(
//!         &self,
//!         _: Vec<PodSandbox>,
//!         _: Vec<Container>,
//!     ) -> Result<(), Refusal> {
//!         Ok(())
//!     }
//!     async fn create(
//!         &self,
//!         _: &PodSandbox,
//!         _: &Container,
//!         _: tokio::time::Instant,
//!     ) -> Result<ContainerAdjustment, Refusal> {
//!         let cpu = CpuChange { cpus: Some([0].into_iter().collect()), ..CpuChange::default() };
//!         Ok(ContainerAdjustment { cpu, ..ContainerAdjustment::default() })
//!     }
//! }
//!
//! # async fn main_of_a_plugin() {
//! let (state, _receiver) = tokio::sync::watch::channel(ConnectionState::default());
//! nri::serve(PluginSettings::new("on-cpu-zero", 10), Arc::new(OnCpuZero), state, Default::default()).await;
//! # }
//! ```

#![warn(clippy::too_many_lines, clippy::excessive_nesting)]

mod adjust;
mod event;
pub mod framing;
mod handler;
mod inventory;
mod plugin;
mod pods;
mod proto;
mod session;
mod settings;
mod state;

pub use adjust::{ContainerAdjustment, CpuChange, QuotaChange};
pub use event::{Event, EventRequest, EventSet, PluginRequest, RequestError, RuntimeInfo};
pub use inventory::Inventory;
pub use plugin::{HandlerTimeout, Plugin, Refusal, UnansweredCall};
pub use pods::{GIVEN_CPUS_ANNOTATION, IMAGE_ANNOTATIONS, pod, pod_uid, qos_class};
pub use proto::{
    Container, ContainerState, LinuxContainer, LinuxCpu, LinuxMemory, LinuxNamespace,
    LinuxPodSandbox, LinuxResources, Mount, OptionalInt64, OptionalUInt64, PodSandbox,
};
pub use session::serve;
pub use settings::{PluginSettings, SOCKET};
pub use state::{ConnectionState, Disconnect};
