//! The error of decoding.

/// The reason why a request cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It is shorter than a header, so it cannot even be answered.
    #[error("shorter than a request header")]
    NoHeader,
    /// The length in the header is not the length of the request.
    #[error("the length in the header is not the length of the request")]
    Length,
    /// It is shorter than the operation's structure.
    #[error("too short for its operation")]
    Short,
    /// The data is shorter or longer than its structure states.
    #[error("the data does not have the stated length")]
    DataLength,
    /// A name is empty, unterminated, or contains `/`.
    #[error("a name is empty, not terminated or contains a slash")]
    Name,
    /// An extension block extends beyond the request.
    #[error("the extension blocks do not fit")]
    Extension,
}
