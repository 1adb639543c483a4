//! TLS of its own, for addresses that others reach.

use crate::rig::{Screen, command, exchange, request, scratch};
use canopy_testkit::PATIENCE;
use canopy_testkit::cmd::run_within;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// Makes a certificate for 127.0.0.1, and its key.
fn certificate(dir: &Path) -> (PathBuf, PathBuf) {
    let (certificate, key) = (dir.join("cert.pem"), dir.join("key.pem"));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
    openssl.args(["-days", "2", "-subj", "/CN=canopy", "-addext", "subjectAltName=IP:127.0.0.1"]);
    openssl.args(["-addext", "basicConstraints=critical,CA:FALSE", "-out"]).arg(&certificate);
    let done = run_within(openssl.arg("-keyout").arg(&key), PATIENCE);
    assert!(done.success(), "{} (apt install openssl)", done.describe());
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("a mode");
    (certificate, key)
}

fn connect(screen: &Screen, certificate: &Path) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificate).expect("a certificate")).expect("a root");
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from("127.0.0.1").expect("a name");
    let client = ClientConnection::new(Arc::new(config), name).expect("a client");
    StreamOwned::new(client, screen.connect())
}

#[test]
fn a_browser_speaks_tls_and_its_cookie_stays_secret() {
    let scratch = scratch();
    let (certificate, key) = certificate(&scratch.dir());
    let [certificate_word, key_word] =
        [&certificate, &key].map(|path| path.to_str().expect("text").to_owned());
    // Nobody has to say that there need be no TLS.
    let args = ["--listen", "0.0.0.0:0", "--certificate", &certificate_word, "--key", &key_word];
    let mut screen = Screen::start_in(scratch, &args);
    assert!(screen.invitation.starts_with("https://0.0.0.0:"), "{}", screen.invitation);
    let port: u16 = screen
        .invitation
        .split(':')
        .nth(2)
        .and_then(|rest| rest.split('/').next()?.parse().ok())
        .expect("a port");
    screen.port = port;
    let host = format!("127.0.0.1:{port}");
    let address = format!("/enter?token={}", screen.token());
    let got = exchange(connect(&screen, &certificate), &request(&host, "GET", &address, &[], ""));
    assert_eq!(got.status, 200, "{got:?}");
    let cookie = got.header("set-cookie").to_owned();
    assert!(cookie.ends_with("; Secure") && cookie.contains("HttpOnly"), "{cookie}");
    let cookie = format!("Cookie: {}", cookie.split(';').next().expect("a cookie"));
    let got = exchange(connect(&screen, &certificate), &request(&host, "GET", "/", &[&cookie], ""));
    assert!(got.status == 200 && got.body.contains("/mnt/media"), "{got:?}");
    // A form of this site is not taken for another's.
    let got = exchange(
        connect(&screen, &certificate),
        &request(
            &host,
            "POST",
            "/leave",
            &[&cookie, &format!("Origin: https://{host}"), crate::rig::FORM],
            "secret=x",
        ),
    );
    assert!(got.body.contains("not of this session"), "{got:?}");
    // Who speaks no TLS gets no page, and who says nothing keeps nobody out.
    let mut plain = screen.connect();
    let silent: Vec<TcpStream> = (0..20).map(|_| screen.connect()).collect();
    let _ = plain.write_all(request(&host, "GET", "/enter", &[], "").as_bytes());
    let mut bytes = Vec::new();
    let _ = plain.read_to_end(&mut bytes);
    assert!(!String::from_utf8_lossy(&bytes).contains("HTTP/1.1 200"), "{bytes:?}");
    let got = exchange(connect(&screen, &certificate), &request(&host, "GET", "/enter", &[], ""));
    assert_eq!(got.status, 200);
    drop(silent);
}

#[test]
fn what_is_wrong_with_certificate_and_key_is_one_line() {
    let scratch = scratch();
    let (certificate, key) = certificate(&scratch.dir());
    let other = scratch.path("other");
    fs::create_dir(&other).expect("a directory");
    let (_, other_key) = self::certificate(&other);
    let open = scratch.path("open.pem");
    fs::copy(&key, &open).expect("a copy");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).expect("a mode");
    let nothing = scratch.path("nothing.pem");
    fs::write(&nothing, "x").expect("a file");
    fs::set_permissions(&nothing, fs::Permissions::from_mode(0o600)).expect("a mode");
    let none = scratch.path("none.pem");
    for (certificate, key, why) in [
        (&certificate, &other_key, "keys may not be consistent"),
        (&certificate, &open, "other users can read or write it (chmod"),
        (&nothing, &key, "it has no certificate"),
        (&certificate, &nothing, "it has no private key"),
        (&none, &key, "cannot read"),
        (&certificate, &none, "cannot look at"),
    ] {
        let [certificate, key] = [certificate, key].map(|path| path.to_str().expect("text"));
        let args = ["--listen", "127.0.0.1:0", "--certificate", certificate, "--key", key];
        let done = run_within(&mut command(&scratch, &args), PATIENCE);
        assert!(!done.success() && done.stderr.contains(why), "{why}: {}", done.describe());
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.describe());
    }
    let [certificate, key] = [&certificate, &key].map(|path| path.to_str().expect("text"));
    for (args, why) in [
        (&["--listen", "127.0.0.1:0", "--certificate", certificate][..], "--key"),
        (&["--listen", "unix:/tmp/x", "--certificate", certificate, "--key", key], "not with a socket"),
        (
            &["--listen", "0.0.0.0:0", "--without-tls", "--certificate", certificate, "--key", key],
            "cannot be used with",
        ),
    ] {
        let done = run_within(&mut command(&scratch, args), PATIENCE);
        assert!(!done.success() && done.stderr.contains(why), "{why}: {}", done.describe());
    }
}
