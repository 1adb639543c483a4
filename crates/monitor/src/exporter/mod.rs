//! A small HTTP server on the loopback interface or on a socket in the filesystem, for a monitoring system of this machine.
//!
//! It knows one document, answers one request per connection and reads nothing but the request line. Whoever wants access
//! from elsewhere, encryption or passwords puts a web server in front.

mod places;

use crate::error::{Error, Result};
use canopy_sys::shown::Show as _;
use places::{Client, Connection, Places};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Where to listen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListenAt {
    /// An address of this machine's loopback interface.
    Port(SocketAddr),
    Socket(PathBuf),
}

impl FromStr for ListenAt {
    type Err = String;

    fn from_str(text: &str) -> Result<ListenAt, String> {
        if text.contains('/') {
            return Ok(ListenAt::Socket(text.into()));
        }
        let address: SocketAddr = text.parse().map_err(|_| {
            "must be 127.0.0.1:PORT, [::1]:PORT or the path of a socket, with a slash".to_owned()
        })?;
        if address.ip().is_loopback() {
            Ok(ListenAt::Port(address))
        } else {
            Err(format!(
                "{} is not an address of the loopback interface (listen on 127.0.0.1:{} and let a web server pass \
                 requests on)",
                address.ip(),
                address.port()
            ))
        }
    }
}

/// The media type of the format.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";
/// How long a client may take to send its request, and again to take the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest request.
const LONGEST: usize = 8 << 10;
/// The most requests at a time.
const AT_ONCE: usize = 64;

/// Serves what `document` returns until a signal arrives.
pub(crate) fn serve(
    place: &ListenAt,
    document: impl Fn() -> Result<String> + Send + Sync + 'static,
) -> Result<()> {
    let mut signals =
        Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(Error::system("cannot wait for signals"))?;
    let failed = |why| Error::Listen { place: shown(place), why };
    let server = Arc::new(Server::new(document));
    let (failure, ends) = channel();
    let handle = signals.handle();
    match place {
        ListenAt::Port(address) => {
            let listener = TcpListener::bind(address).map_err(failed)?;
            let address = listener.local_addr().map_err(failed)?;
            canopy_terminal::print(&format!("http://{address}/metrics\n"));
            std::thread::spawn(move || {
                server.accept(&failure, || listener.accept().map(|(client, _)| client))
            });
        }
        ListenAt::Socket(path) => {
            let listener = bind(path)?;
            canopy_terminal::print(&format!("{}\n", path.shown()));
            std::thread::spawn(move || {
                server.accept(&failure, || listener.accept().map(|(client, _)| client))
            });
        }
    }
    // The listener fails only if the machine is short of something for good.
    let watch = std::thread::spawn(move || {
        let why = ends.recv().ok();
        handle.close();
        why
    });
    let stopped = signals.forever().next().is_some();
    if let ListenAt::Socket(path) = place {
        let _ = fs::remove_file(path);
    }
    match watch {
        _ if stopped => Ok(()),
        watch => watch.join().ok().flatten().map_or(Ok(()), |why| Err(failed(why))),
    }
}

fn shown(place: &ListenAt) -> String {
    match place {
        ListenAt::Port(address) => address.to_string(),
        ListenAt::Socket(path) => path.shown().to_string(),
    }
}

/// Makes the socket, in the place of one that nobody listens on any more.
fn bind(path: &Path) -> Result<UnixListener> {
    let failed = |why| Error::Listen { place: path.shown().to_string(), why };
    if let Ok(there) = path.symlink_metadata() {
        if !there.file_type().is_socket() {
            return Err(Error::NoSocket(path.to_owned()));
        }
        match UnixStream::connect(path) {
            Err(why) if why.kind() == ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(failed)?
            }
            Err(why) => return Err(failed(why)),
            Ok(_) => return Err(Error::SocketInUse(path.to_owned())),
        }
    }
    UnixListener::bind(path).map_err(failed)
}

/// What was returned last, and when the making of it began.
type Last = Option<(Instant, Result<String, String>)>;

struct Server<D> {
    document: D,
    last: Mutex<Last>,
    places: Places,
}

impl<D: Fn() -> Result<String> + Send + Sync + 'static> Server<D> {
    fn new(document: D) -> Server<D> {
        Server { document, last: Mutex::default(), places: Places::new(AT_ONCE) }
    }

    /// Returns a document that was made after this call. However many ask, one is made at a time, for all who wait for it.
    fn document(&self) -> Result<String, String> {
        let asked = Instant::now();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, made)) = last.as_ref().filter(|(began, _)| *began >= asked) {
            return made.clone();
        }
        let began = Instant::now();
        let made = (self.document)().map_err(|why| why.to_string());
        *last = Some((began, made.clone()));
        made
    }

    /// Answers each connection on a thread of its own. Returns after an error that does not pass.
    fn accept<C: Connection>(
        self: Arc<Self>,
        failure: &Sender<io::Error>,
        accept: impl Fn() -> io::Result<C>,
    ) {
        loop {
            match accept() {
                Ok(client) => self.begin(client),
                Err(why) if matches!(why.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                // Descriptors and memory come back.
                Err(why) if is_shortage(&why) => std::thread::sleep(Duration::from_millis(100)),
                Err(why) => {
                    let _ = failure.send(why);
                    return;
                }
            }
        }
    }

    fn begin<C: Connection>(self: &Arc<Self>, connection: C) {
        let client = self.places.take(connection);
        let (server, other) = (Arc::clone(self), Arc::clone(&client));
        let answer = move || {
            // A client that went away is not told.
            let _ = server.answer(&client);
            server.places.leave(&client);
        };
        if std::thread::Builder::new().spawn(answer).is_err() {
            self.places.leave(&other);
        }
    }

    fn answer(&self, client: &Client) -> io::Result<()> {
        let request = client.awaited(PATIENCE, |talk| read_head(talk))?;
        let mut words = request.lines().next().unwrap_or_default().split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let path = target.split('?').next().unwrap_or_default();
        let (status, kind, body) = match (method, path) {
            ("GET" | "HEAD", "/metrics") => match self.document() {
                Ok(text) => ("200 OK", OPENMETRICS, text),
                Err(why) => ("500 Internal Server Error", PLAIN, format!("{why}\n")),
            },
            ("GET" | "HEAD", "/") => ("200 OK", PLAIN, "The metrics are at /metrics.\n".to_owned()),
            ("GET" | "HEAD", _) => ("404 Not Found", PLAIN, "The metrics are at /metrics.\n".to_owned()),
            _ => ("405 Method Not Allowed", PLAIN, "Only GET and HEAD are allowed.\n".to_owned()),
        };
        let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
            body.len()
        );
        client.awaited(PATIENCE, |talk| {
            talk.write_all(head.as_bytes())?;
            if method != "HEAD" {
                talk.write_all(body.as_bytes())?;
            }
            Ok(())
        })
    }
}

/// Reads until the empty line that ends the head of a request.
fn read_head(client: &mut impl Read) -> io::Result<String> {
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let length = client.read(&mut buffer)?;
        if length == 0 || head.len() + length > LONGEST {
            return Err(ErrorKind::InvalidData.into());
        }
        head.extend_from_slice(&buffer[..length]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn is_shortage(why: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(Errno::from_io_error(why), Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn only_this_machine_can_ask() {
        let place = |text: &str| text.parse::<ListenAt>();
        assert_eq!(place("127.0.0.1:9842"), Ok(ListenAt::Port(([127, 0, 0, 1], 9842).into())));
        assert!(place("[::1]:80").is_ok() && place("127.9.9.9:1").is_ok());
        assert_eq!(place("./socket"), Ok(ListenAt::Socket("./socket".into())));
        for (text, why) in [
            ("0.0.0.0:9842", "127.0.0.1:9842"),
            ("[::]:1", "loopback"),
            ("10.1.2.3:80", "loopback"),
            ("9842", "PORT"),
            ("localhost:80", "127.0.0.1:PORT"),
            ("socket", "slash"),
        ] {
            assert!(place(text).is_err_and(|error| error.contains(why)), "{text}");
        }
    }

    #[test]
    fn requests_are_answered_as_http_says() {
        let server = Server::new(|| Ok("# EOF\n".to_owned()));
        let ask = |request: &str| {
            let (mut client, other) = UnixStream::pair().unwrap();
            client.write_all(request.as_bytes()).unwrap();
            client.shutdown(std::net::Shutdown::Write).unwrap();
            let place = server.places.take(other);
            let answered = server.answer(&place);
            server.places.leave(&place);
            drop(place);
            let mut answer = String::new();
            // The end of a connection with a request that was not read to its end is an error.
            let _ = client.read_to_string(&mut answer);
            (answered.is_ok(), answer)
        };
        let (_, answer) = ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains(OPENMETRICS), "{head}");
        assert!(head.contains("Content-Length: 6\r\n") && body == "# EOF\n", "{answer}");
        let (_, answer) = ask("HEAD /metrics?x=1 HTTP/1.0\r\n\r\n");
        assert!(answer.contains("Content-Length: 6\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
        for (request, status) in [
            ("GET / HTTP/1.1\r\n\r\n", "200"),
            ("GET /metricsx HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("\r\n\r\n", "405"),
        ] {
            let (_, answer) = ask(request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {answer}");
        }
        let endless = "GET /metrics HTTP/1.1\r\n".repeat(LONGEST);
        for request in ["GET /metrics HTTP/1.1\r\n", &endless[..2 * LONGEST]] {
            assert_eq!(ask(request), (false, String::new()));
        }
    }

    #[test]
    fn one_document_is_made_for_all_who_wait_for_it() {
        let made = AtomicUsize::new(0);
        let server = Arc::new(Server::new(move || {
            std::thread::sleep(Duration::from_millis(50));
            Ok(made.fetch_add(1, Ordering::Relaxed).to_string())
        }));
        let asks = [(); 40].map(|()| {
            let server = Arc::clone(&server);
            std::thread::spawn(move || server.document().unwrap().parse::<usize>().unwrap())
        });
        let last = asks.map(|ask| ask.join().unwrap()).into_iter().max().unwrap();
        assert!(last < 20, "{last}");
        assert_eq!(server.document(), Ok((last + 1).to_string()), "one that was made before is not returned");
    }

    #[test]
    fn a_socket_that_was_left_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let first = bind(&path).unwrap();
        assert!(matches!(bind(&path), Err(Error::SocketInUse(_))));
        drop(first);
        drop(bind(&path).unwrap());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert!(matches!(bind(&path), Err(Error::NoSocket(_))));
    }
}
