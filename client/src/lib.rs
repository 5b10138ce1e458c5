//! client

pub mod admin;
mod breaker;
pub mod cli;
mod client;
mod config;
mod counters;
mod error;
mod fuse;
mod lease;
mod queue;
mod retry;
mod runtime;
mod session;
mod transport;

pub use client::{Client, Purpose};
pub use config::{Address, BreakerConfig, ClientConfig, DEFAULT_ADDRESS, TransportChoice};
pub use counters::Counters;
pub use error::ClientError;
