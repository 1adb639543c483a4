//! TLS: the certificate and the key with which an address is listened on that others reach.

use crate::error::{Error, Result};
use canopy_sys::shown::Show as _;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject as _};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Where the certificate and its key are, in PEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Files {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Files {
    /// Reads them, once: a new certificate counts from the next start on.
    ///
    /// # Errors
    /// If they cannot be read, do not belong together, or others can read the key.
    pub fn acceptor(&self) -> Result<TlsAcceptor> {
        let chain = read(&self.certificate, |bytes| {
            CertificateDer::pem_slice_iter(bytes).collect::<Result<Vec<_>, _>>()
        })?;
        if chain.is_empty() {
            return Err(wrong(&self.certificate, "it has no certificate (PEM: -----BEGIN CERTIFICATE-----)"));
        }
        let of_key = Error::file("look at", &self.key);
        if fs::metadata(&self.key).map_err(of_key)?.mode() & 0o007 != 0 {
            return Err(wrong(&self.key, "other users can read or write it (chmod o= takes that away)"));
        }
        let key = read(&self.key, PrivateKeyDer::from_pem_slice)?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config.with_safe_default_protocol_versions().map(|config| config.with_no_client_auth());
        let config = config.and_then(|config| config.with_single_cert(chain, key));
        let mut config =
            config.map_err(|why| wrong(&self.certificate, &format!("with {}: {why}", self.key.shown())))?;
        // The only one that is spoken here.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

fn read<T>(path: &Path, parse: impl FnOnce(&[u8]) -> Result<T, pem::Error>) -> Result<T> {
    let bytes = fs::read(path).map_err(Error::file("read", path))?;
    parse(&bytes).map_err(|why| match why {
        pem::Error::NoItemsFound => wrong(path, "it has no private key (PEM: -----BEGIN PRIVATE KEY-----)"),
        why => wrong(path, &format!("it is no PEM: {why:?}")),
    })
}

fn wrong(path: &Path, why: &str) -> Error {
    Error::Tls { path: path.to_owned(), why: why.to_owned() }
}
