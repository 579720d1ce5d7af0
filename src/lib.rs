//! Pinfold: a node agent for Kubernetes clusters that train models on CPUs.

pub mod cli;
pub mod cpu;
pub mod host;
pub mod local;
pub mod pod;
