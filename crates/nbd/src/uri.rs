//! NBD URIs, as `doc/uri.md` of the project `NetworkBlockDevice` defines them: the address of a
//! server, the name of an export, and how TLS is to be used.

use std::ffi::{OsStr, OsString};
use std::fmt::{self, Write as _};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};

use crate::error::Error;

/// The port of NBD.
pub const DEFAULT_PORT: u16 = 10809;

/// The parameters that may follow a `?`.
const PARAMETERS: [&str; 5] = ["socket", "tls-certificates", "tls-hostname", "tls-type", "tls-verify-peer"];

const SCHEMES: [(&str, bool, bool); 4] =
    [("nbd", false, false), ("nbds", true, false), ("nbd+unix", false, true), ("nbds+unix", true, true)];

/// The characters that are escaped in the name of an export and in the value of a parameter.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// An export of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    /// The address of the server.
    pub address: Address,
    /// The name of the export, which is often empty.
    pub export: String,
    /// How the connection is encrypted, if it is.
    pub tls: Option<TlsOptions>,
}

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A host and a port.
    Tcp(String, u16),
    /// A Unix domain socket.
    Unix(PathBuf),
}

/// How TLS is used: with certificates (X.509) of both sides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// A directory with `ca-cert.pem`, and perhaps `client-cert.pem` and `client-key.pem`.
    pub certificates: Option<PathBuf>,
    /// The name in the server's certificate, if it is not that of the host.
    pub hostname: Option<String>,
}

impl Uri {
    /// Returns whether the name of a device is meant as a URI: it has a scheme of ours, or any
    /// other scheme and there is no such path.
    pub fn is_meant(name: impl AsRef<OsStr>) -> bool {
        let name = name.as_ref();
        let Some((scheme, rest)) = split_scheme(name.as_bytes()) else { return false };
        match find_scheme(scheme) {
            Some((.., true)) => rest.starts_with(b"/"),
            Some(_) => rest.starts_with(b"//"),
            None => rest.starts_with(b"//") && !Path::new(scheme).exists() && !Path::new(name).exists(),
        }
    }

    /// The offset in the text at which the host begins, or the path if there is no host.
    fn start_of_place(name: &[u8]) -> usize {
        let Some((scheme, rest)) = split_scheme(name) else { return 0 };
        scheme.len() + 1 + if rest.starts_with(b"//") { 2 } else { 0 }
    }

    /// Removes passwords from a name for messages, also from one that is no URI of ours.
    pub fn without_secrets(name: &str) -> String {
        let (place, query) = name.split_once('?').map_or((name, None), |(place, query)| (place, Some(query)));
        let start = Self::start_of_place(place.as_bytes());
        let host = place[start..].split('/').next().unwrap_or_default();
        let (_, shown_host) = host.rsplit_once('@').unwrap_or(("", host));
        let mut shown = format!("{}{shown_host}{}", &place[..start], &place[start + host.len()..]);
        for (number, pair) in query.into_iter().flat_map(|query| query.split('&')).enumerate() {
            shown.push(if number == 0 { '?' } else { '&' });
            match pair.split_once('=') {
                Some((key, _)) if !PARAMETERS.contains(&key) => shown.extend([key, "=…"]),
                _ => shown.push_str(pair),
            }
        }
        shown
    }

    /// Parses a URI. Errors do not name it.
    pub fn parse(name: impl AsRef<OsStr>) -> Result<Self, Error> {
        let name = name.as_ref();
        let wrong = Error::Uri;
        let text = name.to_str().ok_or_else(|| wrong("a URI has no such characters".into()))?;
        let (scheme, rest) = text.split_once(':').unwrap_or_default();
        let Some((scheme, is_tls, is_unix)) = find_scheme(scheme.as_ref()) else {
            let known = SCHEMES.map(|(known, ..)| format!("{known}://")).join(", ");
            return Err(wrong(format!("there is no such path, and '{scheme}://' is none of the schemes {known}")));
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = match place.strip_prefix("//") {
            Some(place) => place.split_once('/').unwrap_or((place, "")),
            None if *is_unix => ("", place.strip_prefix('/').unwrap_or(place)),
            None => return Err(wrong(format!("two slashes follow the scheme: {scheme}://"))),
        };
        if authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':')) {
            return Err(wrong("NBD has no passwords: leave it out".into()));
        }
        let export = decoded(path).ok_or_else(|| wrong("the name of the export is not UTF-8".into()))?;
        if export.len() > crate::abi::MAX_STRING || export.contains('\0') {
            return Err(wrong("there can't be an export of that name".into()));
        }
        let mut socket = None;
        let mut tls = TlsOptions::default();
        for (key, value) in
            query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        {
            let bytes = || OsString::from_vec(percent_decode_str(value).collect());
            match key {
                "socket" => socket = Some(PathBuf::from(bytes())),
                "tls-certificates" => tls.certificates = Some(bytes().into()),
                "tls-hostname" => tls.hostname = decoded(value),
                "tls-type" if value == "x509" => {}
                "tls-verify-peer" if value == "1" => {}
                "tls-verify-peer" => {
                    return Err(wrong("servers are always verified: leave tls-verify-peer out".into()));
                }
                "tls-type" | "tls-psk-file" | "tls-username" => {
                    return Err(wrong("TLS is done by certificates (X.509) only, not by shared keys".into()));
                }
                _ => {
                    return Err(wrong(format!(
                        "the parameter '{key}' is not known: socket, tls-certificates, tls-hostname"
                    )));
                }
            }
        }
        let address = match (*is_unix, socket) {
            (true, Some(socket)) if !socket.as_os_str().is_empty() => Address::Unix(socket),
            (true, _) => return Err(wrong("it lacks the socket: ?socket=PATH".into())),
            (false, Some(_)) => return Err(wrong(format!("a socket belongs to {scheme}+unix://"))),
            (false, None) => host_and_port(authority).map_err(wrong)?,
        };
        Ok(Self { address, export, tls: is_tls.then_some(tls) })
    }

    /// Returns the URI with absolute paths.
    pub fn absolute(mut self) -> std::io::Result<Self> {
        if let Address::Unix(socket) = &mut self.address
            && !socket.as_os_str().as_bytes().starts_with(b"\0")
        {
            *socket = std::path::absolute(&*socket)?;
        }
        if let Some(TlsOptions { certificates: Some(directory), .. }) = &mut self.tls {
            *directory = std::path::absolute(&*directory)?;
        }
        Ok(self)
    }

    /// The name that the server's certificate must have.
    pub(crate) fn server_name(&self) -> String {
        let asked = self.tls.as_ref().and_then(|tls| tls.hostname.clone());
        asked.unwrap_or_else(|| match &self.address {
            Address::Tcp(host, _) => host.clone(),
            Address::Unix(_) => "localhost".into(),
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(socket) => write!(f, "{}", socket.display()),
        }
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let encrypted = if self.tls.is_some() { "s" } else { "" };
        let mut parameters = Vec::new();
        match &self.address {
            Address::Tcp(host, DEFAULT_PORT) if !host.contains(':') => write!(f, "nbd{encrypted}://{host}")?,
            address @ Address::Tcp(..) => write!(f, "nbd{encrypted}://{address}")?,
            Address::Unix(socket) => {
                write!(f, "nbd{encrypted}+unix://")?;
                parameters.push(("socket", socket.as_os_str().as_bytes()));
            }
        }
        f.write_char('/')?;
        write!(f, "{}", percent_encode(self.export.as_bytes(), ESCAPED))?;
        if let Some(tls) = &self.tls {
            parameters.extend(tls.certificates.as_deref().map(|path| ("tls-certificates", bytes_of(path))));
            parameters.extend(tls.hostname.as_deref().map(|name| ("tls-hostname", name.as_bytes())));
        }
        for (number, (key, value)) in parameters.into_iter().enumerate() {
            write!(f, "{}{key}={}", if number == 0 { '?' } else { '&' }, percent_encode(value, ESCAPED))?;
        }
        Ok(())
    }
}

/// Splits a text at the first colon, if the part before it looks like a scheme.
fn split_scheme(name: &[u8]) -> Option<(&OsStr, &[u8])> {
    let at = name.iter().position(|byte| *byte == b':')?;
    let scheme = &name[..at];
    let is_scheme = scheme.first().is_some_and(u8::is_ascii_alphabetic)
        && scheme.iter().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte));
    is_scheme.then_some((OsStr::from_bytes(scheme), &name[at + 1..]))
}

/// Finds the supported scheme of this name: whether it means TLS, and a Unix domain socket.
fn find_scheme(scheme: &OsStr) -> Option<&'static (&'static str, bool, bool)> {
    SCHEMES.iter().find(|(known, ..)| scheme.eq_ignore_ascii_case(known))
}

fn bytes_of(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

fn decoded(text: &str) -> Option<String> {
    percent_decode_str(text).decode_utf8().ok().map(Into::into)
}

fn host_and_port(authority: &str) -> Result<Address, String> {
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or("a ] is missing")?;
            if !port.is_empty() && !port.starts_with(':') {
                return Err("a colon is missing between ] and the port".into());
            }
            (host, port.strip_prefix(':').unwrap_or(port))
        }
        None => authority.split_once(':').unwrap_or((authority, "")),
    };
    let port = if port.is_empty() { Ok(DEFAULT_PORT) } else { port.parse() };
    let port = port.map_err(|_| "the port is no number up to 65535")?;
    let host = decoded(host).ok_or("the host is no name")?;
    Ok(Address::Tcp(if host.is_empty() { "localhost".into() } else { host }, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16, export: &str) -> Uri {
        Uri { address: Address::Tcp(host.into(), port), export: export.into(), tls: None }
    }

    #[test]
    fn uris_of_the_standard_are_understood() {
        for (text, expected) in [
            ("nbd://example.com/disk", tcp("example.com", DEFAULT_PORT, "disk")),
            ("nbd://example.com/", tcp("example.com", DEFAULT_PORT, "")),
            ("nbd://example.com", tcp("example.com", DEFAULT_PORT, "")),
            ("nbd://example.com:10810//disk", tcp("example.com", 10810, "/disk")),
            ("nbd://user@[::1]:99/hello%20world", tcp("::1", 99, "hello world")),
            ("nbd:///disk", tcp("localhost", DEFAULT_PORT, "disk")),
            ("NBD://example.com/disk", tcp("example.com", DEFAULT_PORT, "disk")),
        ] {
            assert_eq!(Uri::parse(text).unwrap(), expected, "{text}");
            assert_eq!(Uri::parse(expected.to_string()).unwrap(), expected, "{expected}");
        }
        let one_slash = Uri::parse("nbd+unix:/disk?socket=/s").unwrap();
        assert_eq!(one_slash, Uri::parse("nbd+unix:///disk?socket=/s").unwrap());
        let unix = Uri::parse("nbds+unix:///a%3Ab?socket=/run/a%20b.sock&tls-certificates=/etc/pki&tls-hostname=ceph1")
            .unwrap();
        assert_eq!((unix.export.as_str(), unix.address.clone()), ("a:b", Address::Unix("/run/a b.sock".into())));
        let tls = unix.tls.clone().unwrap();
        assert_eq!((tls.certificates, tls.hostname.as_deref()), (Some("/etc/pki".into()), Some("ceph1")));
        assert_eq!(
            unix.to_string(),
            "nbds+unix:///a%3Ab?socket=/run/a%20b.sock&tls-certificates=/etc/pki&tls-hostname=ceph1"
        );
    }

    #[test]
    fn what_a_uri_lacks_is_said() {
        for (text, said) in [
            ("nbd+unix:///export", "socket=PATH"),
            ("nbd://host/x?socket=/s", "nbd+unix://"),
            ("nbd://host:port/x", "65535"),
            ("nbds://host/x?tls-psk-file=/k", "certificates"),
            ("nbds://host/x?tls-verify-peer=0", "always verified"),
            ("nbd://host/x?timeout=3", "'timeout' is not known"),
            ("nbd://[::1]99/x", "a colon is missing"),
            ("nbdx://host/x", "nbd://, nbds://, nbd+unix://, nbds+unix://"),
            ("nbd:/host/x", "two slashes"),
            ("nbd://me:secret@host/x", "no passwords"),
            ("nbd://host/x?password=secret", "'password' is not known"),
        ] {
            let error = Uri::parse(text).unwrap_err().to_string();
            assert!(error.contains(said) && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        for (name, shown) in [
            ("nbd://me:secret@host:9/a@b?socket=/s&password=secret", "nbd://host:9/a@b?socket=/s&password=…"),
            ("s3://key:secret@bucket", "s3://bucket"),
            ("nbd+unix:/a?socket=/s", "nbd+unix:/a?socket=/s"),
            ("/dev/sda", "/dev/sda"),
        ] {
            assert_eq!(Uri::without_secrets(name), shown);
        }
    }

    #[test]
    fn files_are_no_uris() {
        for name in ["/dev/sda", "nbd", "nbd:", "nbd:/x", "1://x", "a b://x", "/a://x"] {
            assert!(!Uri::is_meant(name), "{name}");
        }
        for name in ["nbd://", "NBDS://x", "nbds+unix:///?socket=/s", "nbd+unix:/?socket=/s", "rbd://pool/image"] {
            assert!(Uri::is_meant(name), "{name}");
        }
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("a.img");
        assert!(!Uri::is_meant(format!("{}://x", image.display())), "a path has a slash before the colon");
    }
}
