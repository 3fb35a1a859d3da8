//! idgen: a distributed ID server behind the Redis protocol.
//!
//! `ARCHITECTURE.md` tells the rooms and the trip of a request through them.

pub mod acl;
pub mod admin;
pub mod app;
pub mod cli;
pub mod clock;
pub mod command;
pub mod config;
pub mod engine;
pub mod glob;
pub mod health;
pub mod ids;
pub mod limit;
pub mod metrics;
pub mod registry;
pub mod resp;
pub mod router;
pub mod server;
pub mod store;
pub mod telemetry;
