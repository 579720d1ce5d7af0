//! Pinfold: a node agent for Kubernetes clusters that train models on CPUs.

pub mod agent;
pub mod cli;
pub mod cpu;
pub mod host;
pub mod metrics;
pub mod pin;
pub mod pod;
