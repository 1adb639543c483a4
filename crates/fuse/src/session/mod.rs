//! A connection, from INIT to its end: negotiation and the threads that serve.

mod error;
mod init;
mod running;
#[cfg(test)]
mod tests;

pub use error::SessionError;
pub use init::Session;
pub use running::Running;
