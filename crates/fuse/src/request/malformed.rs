//! Why a request cannot be decoded.

/// Why a request was not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Shorter than a header; there is nobody to answer.
    #[error("shorter than a request header")]
    NoHeader,
    /// The header states another length than arrived.
    #[error("the length in the header is not the length of the request")]
    Length,
    /// The operation's own structure does not fit.
    #[error("too short for its operation")]
    Short,
    /// Data is shorter or longer than its structure states.
    #[error("data of another length than announced")]
    DataLength,
    /// A name is empty, unterminated, or contains `/`.
    #[error("a name that is empty, not terminated or has a slash")]
    Name,
    /// An extension block reaches beyond the request.
    #[error("extension blocks that do not fit")]
    Extension,
}
