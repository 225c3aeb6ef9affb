// SPDX-License-Identifier: Apache-2.0
//! What Crab's parts say to each other, and where they find each other.
//!
//! ```text
//! shim --Tracer, Schedule-->  crabd     /run/crab/crabd.sock
//! shim <--programs--  crabd   /run/crab/programs.sock
//! crab --Tracer, Schedule-->  crabd
//! crab --Sandbox--> shim      address in /run/crab/sandboxes/<ns>/<id>/address
//! ```
//!
//! The protocol is in `proto/`; this crate holds its generated bindings
//! ([`tracer`], [`schedule`], [`sandbox`]), the paths ([`paths`]), the client side of a
//! connection ([`connect`]) and how programs are lent ([`programs`]). It knows no other crate of the project.

mod connect;
pub mod paths;
pub mod programs;

pub use connect::{ConnectError, connect};
pub use protobuf;
pub use ttrpc;

/// Messages of the service that crabd serves.
#[allow(missing_docs, unreachable_pub, warnings)] // generated code
pub mod tracer {
    include!(concat!(env!("OUT_DIR"), "/tracer.rs"));
}

/// Client and server of the service that crabd serves.
#[allow(missing_docs, unreachable_pub, warnings)] // generated code
pub mod tracer_ttrpc {
    include!(concat!(env!("OUT_DIR"), "/tracer_ttrpc.rs"));
}

/// Messages of crabd's schedule.
#[allow(missing_docs, unreachable_pub, warnings)] // generated code
pub mod schedule {
    include!(concat!(env!("OUT_DIR"), "/schedule.rs"));
}

/// Client and server of crabd's schedule.
#[allow(missing_docs, unreachable_pub, warnings)] // generated code
pub mod schedule_ttrpc {
    include!(concat!(env!("OUT_DIR"), "/schedule_ttrpc.rs"));
}

/// Messages of the service that each shim serves.
#[allow(missing_docs, unreachable_pub, warnings)] // generated code
pub mod sandbox {
    include!(concat!(env!("OUT_DIR"), "/sandbox.rs"));
}

/// Client and server of the service that each shim serves.
#[allow(missing_docs, unreachable_pub, warnings)] // generated code
pub mod sandbox_ttrpc {
    include!(concat!(env!("OUT_DIR"), "/sandbox_ttrpc.rs"));
}
