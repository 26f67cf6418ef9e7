//! TLS with certificates: the authorities to trust, and our own certificate.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{CertificateError, ClientConfig, ClientConnection, RootCertStore};
use ubtrfs_errors::sentence;

use crate::error::{BoxError, Error};
use crate::uri::Uri;

/// The files in which distributions keep the authorities that a machine trusts.
const SYSTEM: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];

/// The client's side of a TLS session with the server of this URI.
pub(crate) fn client(uri: &Uri) -> Result<ClientConnection, Error> {
    let directory = uri.tls.as_ref().and_then(|tls| tls.certificates.as_deref());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Tls(error.into()))?
        .with_root_certificates(trusted(directory)?);
    let config = match directory.map(|directory| directory.join("client-cert.pem")).filter(|path| path.exists()) {
        Some(certificate) => {
            let key = certificate.with_file_name("client-key.pem");
            let chain = certificates(&certificate)?;
            let key = PrivateKeyDer::from_pem_file(&key).map_err(|error| unreadable(&key, error))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| unreadable(&certificate, error))?
        }
        None => builder.with_no_client_auth(),
    };
    let name = uri.server_name();
    let name =
        ServerName::try_from(name.clone()).map_err(|_| Error::Tls(format!("'{name}' is no name of a host").into()))?;
    ClientConnection::new(Arc::new(config), name).map_err(|error| Error::Tls(error.into()))
}

/// The error of a failed handshake, with a remedy if there is one on this side.
pub(crate) fn failed(error: &io::Error) -> Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let remedy = match inner {
        Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)) => {
            "; tls-certificates=DIR in the URI names a directory with the ca-cert.pem of the authority that vouches for it"
        }
        Some(rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => "; tls-hostname=NAME in the URI says which name the server's certificate has",
        _ => "",
    };
    Error::Tls(format!("{}{remedy}", sentence(error)).into())
}

fn trusted(directory: Option<&Path>) -> Result<RootCertStore, Error> {
    let system = || SYSTEM.iter().map(PathBuf::from).find(|path| path.exists());
    let file = match directory {
        Some(directory) => directory.join("ca-cert.pem"),
        None => system().ok_or_else(|| {
            Error::Tls("no authority is known that could vouch for the server: name a directory with ca-cert.pem, by tls-certificates=".into())
        })?,
    };
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(certificates(&file)?);
    if store.is_empty() {
        return Err(Error::Tls(format!("{}: there is no usable certificate in it", file.display()).into()));
    }
    Ok(store)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    read.map_err(|error| unreadable(path, error))
}

fn unreadable(path: &Path, error: impl Into<BoxError>) -> Error {
    Error::TlsFile { path: path.into(), source: error.into() }
}
