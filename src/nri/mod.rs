//! NRI, the container runtimes' plugin protocol: events in, answers out.
//!
//! containerd and CRI-O ask plugins before they create and start a container, and tell them what becomes of it. [`serve()`]
//! is the plugin's half of that protocol; a [`Plugin`] answers. This room decides nothing and knows no policy.
//!
//! ```text
//!  the runtime's socket <──> serve (connects for ever) ── State ──> whoever asks how it stands
//!        │                     │
//!        │ mux: two channels   │ one task for a connection
//!        │ ttrpc: calls        │
//!        ▼                     ▼
//!   1 Plugin   the runtime calls ── Request ──> Plugin's handlers, each with a deadline
//!   2 Runtime  the plugin calls <── registration, the only call
//! ```
//!
//! What happens when:
//!
//! | | |
//! |---|---|
//! | no socket, a refused registration, a runtime that dies | [`ConnectionState::Away`] with the reason; tried again for ever, with growing waits |
//! | a handler over its deadline | cancelled; [`Plugin::unanswered`] answers, so the runtime keeps the plugin |
//! | a method or a service that nobody knows | the call is answered "unimplemented" |
//! | a call that can't be read | the call is answered "invalid argument"; the connection goes on |
//! | a message above 4 MiB | skipped, answered "resource exhausted"; the connection goes on |
//! | pods and containers that need more than 16 MiB after [`Plugin::reduce`] | Synchronize is refused, and the connection ends |
//! | a frame above 4 MiB | the end of the connection: what follows makes no sense |
//! | a channel that nobody knows | its bytes are dropped |
//! | an event that was not subscribed to, or is newer than we are | answered by an empty message |
//! | a runtime that reads nothing for 10 s | the end of the connection |
//!
//! A runtime drops a plugin that does not answer in time (2 s by default), and goes on *without* it: containers are then
//! created unadjusted. So the deadline here is three quarters of the runtime's, and what happens at it is the plugin's
//! choice.
//!
//! [`pod()`] makes a [`pod::Pod`](crate::pod::Pod) of what a runtime tells, and is the only part that knows what a pod is. An
//! event names one container and not those beside it: an [`Inventory`] remembers them.
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
//!     fn events(&self) -> Events {
//!         [Event::CreateContainer].into()
//!     }
//!     fn unanswered(&self, _: &UnansweredCall<'_>, _: HandlerTimeout) -> Result<(), Refusal> {
//!         Ok(())
//!     }
//!     async fn synchronize(
//!         &self,
//!         _: Vec<PodSandbox>,
//!         _: Vec<Container>,
//!     ) -> Result<Vec<ContainerUpdate>, Refusal> {
//!         Ok(Vec::new())
//!     }
//!     async fn create(&self, _: &PodSandbox, _: &Container) -> Result<Creation, Refusal> {
//!         let cpu = CpuChange { cpus: Some([0].into_iter().collect()), ..CpuChange::default() };
//!         let adjustment = ContainerAdjustment { cpu, ..ContainerAdjustment::default() };
//!         Ok(Creation { adjustment, ..Creation::default() })
//!     }
//! }
//!
//! # async fn main_of_a_plugin() -> Result<(), PluginSettingsError> {
//! let (state, _how_it_stands) = tokio::sync::watch::channel(ConnectionState::default());
//! nri::serve(PluginSettings::new("on-cpu-zero", 10)?, Arc::new(OnCpuZero), state, Default::default()).await;
//! # Ok(())
//! # }
//! ```

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

pub use adjust::{ContainerAdjustment, ContainerUpdate, CpuChange, Quota};
pub use event::{Event, EventRequest, Events, PluginRequest, RequestError, RuntimeInfo};
pub use inventory::Inventory;
pub use plugin::{Creation, HandlerTimeout, Plugin, Refusal, UnansweredCall};
pub use pods::{IMAGES, pod, pod_uid, qos_class};
pub use proto::{
    Container, ContainerState, LinuxContainer, LinuxCpu, LinuxMemory, LinuxNamespace,
    LinuxPodSandbox, LinuxResources, OptionalInt64, OptionalUInt64, PodSandbox,
};
pub use session::serve;
pub use settings::{PluginSettings, PluginSettingsError, SOCKET};
pub use state::{ConnectionState, Disconnect};
