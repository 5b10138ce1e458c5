//! client

pub mod admin;
mod breaker;
mod client;
mod config;
mod counters;
mod error;
mod retry;
mod runtime;
mod session;
mod transport;

pub use client::{Client, Purpose};
pub use config::{Address, BreakerConfig, ClientConfig, DEFAULT_ADDRESS, TransportChoice};
pub use counters::Counters;
pub use error::ClientError;
