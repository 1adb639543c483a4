//! The socket of the pool. What is asked here waits neither for a branch nor for the kernel: a connection has a thread of its
//! own, which may take as long as the change that it makes.
//!
//! The kernel says who has connected, and the same door decides that decides about the control file. Each connection asks once.

use super::Control;
use canopy_base::lock::rank::Leaf;
use canopy_base::lock::ranked::Mutex;
use canopy_control::messages::{FORM, Hello, LONGEST_QUERY, Query, Reply};
use canopy_control::socket::{directory, is_private, name};
use canopy_pool::door::{Act, Peer};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::HashMap;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

const ACCEPTS: &str = "canopy-control";
const ANSWERS: &str = "canopy-answer";
/// Held while a socket is put in its place, so that none is taken for a dead one meanwhile.
const LOCK: &str = ".lock";
/// How many connections a user other than an administrator may have, and how many there may be of all of them. Administrators
/// have as many again.
const OF_A_USER: usize = 4;
const OF_ALL: usize = 16;
/// For how long a client may be silent, and how long it may take to ask.
const SILENCE: Duration = Duration::from_secs(5);

/// The socket of a pool. It goes when this is dropped.
pub(crate) struct Socket {
    listener: UnixListener,
    /// Hidden until it is published.
    path: PathBuf,
    is_published: bool,
    identity: (u64, u64),
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

impl Socket {
    /// Makes a socket for the pools of this user, which nobody knows yet.
    pub(crate) fn new() -> io::Result<Socket> {
        let user = rustix::process::getuid().as_raw();
        let dir = directory(user);
        DirBuilder::new().recursive(true).mode(0o755).create(&dir)?;
        if !is_private(&dir, user) {
            return Err(io::Error::other("others may write to its directory"));
        }
        // A process that takes over makes its own: the one before is closed with what that had open.
        let path = dir.join(format!(".{}", std::process::id()));
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        // Anybody may ask; the door decides who gets what.
        fs::set_permissions(&path, Permissions::from_mode(0o666))?;
        let identity = identity(&path)?;
        Ok(Socket { listener, path, is_published: false, identity })
    }

    /// Starts the thread that accepts connections. It is confined as the one that starts it.
    pub(crate) fn serve(&self, control: &Arc<Control>) -> io::Result<()> {
        let (listener, control) = (self.listener.try_clone()?, Arc::downgrade(control));
        thread::Builder::new().name(ACCEPTS.into()).spawn(move || accept(&listener, &control)).map(drop)
    }

    /// Puts the socket where clients look for it, in the place of one that a process has left that was killed. Whoever connects
    /// before it is served waits a moment.
    pub(crate) fn publish(&mut self, device: (u32, u32)) -> io::Result<()> {
        if self.is_published {
            return Ok(());
        }
        let dir = self.path.parent().unwrap_or(Path::new("/")).to_owned();
        let path = dir.join(name(device));
        // Of a file that nobody else can open: whoever can may lock it, and keep this waiting.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = rustix::fs::open(dir.join(LOCK), flags, Mode::RUSR | Mode::WUSR)?;
        flock(&lock, FlockOperation::LockExclusive)?;
        fs::rename(&self.path, &path)?;
        (self.path, self.is_published) = (path, true);
        sweep(&dir, &self.path);
        Ok(())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // A process that has taken over may have its name by now.
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes sockets that nobody listens on: of pools whose process was killed.
fn sweep(dir: &Path, own: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path != own && path.extension().is_some_and(|end| end == "sock") && is_dead(&path) {
            let _ = fs::remove_file(&path);
        }
    }
}

fn is_dead(path: &Path) -> bool {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let address = SocketAddrUnix::new(path);
    let connected = socket.and_then(|socket| rustix::net::connect(&socket, &address?));
    connected == Err(Errno::CONNREFUSED)
}

/// The connections of each user.
#[derive(Default)]
struct Guests {
    of_user: Mutex<HashMap<u32, usize>, Leaf>,
}

/// A connection that counts.
struct Guest {
    guests: Arc<Guests>,
    uid: u32,
}

impl Guests {
    /// Counts a connection of a user; `None` if there are too many.
    fn admit(self: &Arc<Guests>, uid: u32, owner: u32) -> Option<Guest> {
        let is_administrator = |uid: u32| uid == 0 || uid == owner;
        let mut of_user = self.of_user.lock();
        let all: usize = of_user
            .iter()
            .filter(|(other, _)| is_administrator(**other) == is_administrator(uid))
            .map(|(_, count)| count)
            .sum();
        let own = of_user.entry(uid).or_default();
        if all >= OF_ALL || *own >= OF_A_USER && !is_administrator(uid) {
            return None;
        }
        *own += 1;
        Some(Guest { guests: Arc::clone(self), uid })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut of_user = self.guests.of_user.lock();
        if let Some(count) = of_user.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                of_user.remove(&self.uid);
            }
        }
    }
}

fn accept(listener: &UnixListener, control: &Weak<Control>) {
    let guests = Arc::<Guests>::default();
    let owner = rustix::process::getuid().as_raw();
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(why) if why.kind() == io::ErrorKind::Interrupted => continue,
            // No descriptors or no memory, for now.
            Err(_) => {
                thread::sleep(SILENCE / 50);
                continue;
            }
        };
        let Some(control) = control.upgrade() else { return };
        let Ok(peer) = Peer::of(&stream) else { continue };
        // Whoever has too many connections finds this one closed, and has the control file.
        let Some(guest) = guests.admit(peer.uid(), owner) else { continue };
        let answer = move || {
            // A client that goes away has no answer to miss.
            let _ = serve(&stream, &peer, &control);
            drop(guest);
        };
        if let Err(why) = thread::Builder::new().name(ANSWERS.into()).spawn(answer) {
            tracing::debug!("a question over the socket is not answered: {why}");
        }
    }
}

fn serve(mut stream: &UnixStream, peer: &Peer, control: &Control) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    let device = control.settings.device().ok_or_else(|| io::Error::other("it is not mounted yet"))?;
    let hello = Hello { form: FORM, device, changes: peer.is_known() };
    stream.write_all(&line(&hello))?;
    let query = read_query(stream)?;
    let admits = |act: Act| control.pool.admits_peer(peer, act);
    let reply: Reply = control.ask(&query, &admits).map_err(Errno::raw_os_error);
    stream.write_all(&line(&reply))
}

fn line(message: &impl serde::Serialize) -> Vec<u8> {
    let mut line = super::status::json(message);
    line.push(b'\n');
    line
}

/// Reads a question, which is too late or too long when the time or the length is used up.
fn read_query(stream: &UnixStream) -> io::Result<Query> {
    let until = Instant::now() + SILENCE;
    let mut lines = BufReader::new(stream.take(LONGEST_QUERY as u64));
    let mut text = Vec::new();
    loop {
        let read = lines.fill_buf()?;
        if read.is_empty() || Instant::now() >= until {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let end = read.iter().position(|&byte| byte == b'\n');
        text.extend_from_slice(&read[..end.unwrap_or(read.len())]);
        let used = end.map_or(read.len(), |end| end + 1);
        lines.consume(used);
        if end.is_some() {
            return Ok(serde_json::from_slice(&text)?);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_all_connections() {
        let guests = Arc::<Guests>::default();
        let mut held: Vec<Guest> = (0..OF_A_USER).filter_map(|_| guests.admit(7, 1000)).collect();
        assert!(held.len() == OF_A_USER && guests.admit(7, 1000).is_none());
        held.extend((8..20).flat_map(|uid| [guests.admit(uid, 1000), guests.admit(uid, 1000)]).flatten());
        assert_eq!(held.len(), OF_ALL, "of all users but administrators");
        let roots: Vec<Guest> = (0..OF_ALL - 1).filter_map(|_| guests.admit(0, 1000)).collect();
        assert_eq!(roots.len(), OF_ALL - 1);
        let owner = guests.admit(1000, 1000);
        assert!(owner.is_some() && guests.admit(0, 1000).is_none(), "administrators have a limit, too");
        drop(held);
        assert!(guests.admit(7, 1000).is_some());
    }

    #[test]
    fn a_question_is_short_and_comes_in_time() {
        let ask = |text: &[u8]| {
            let (mut client, server) = UnixStream::pair().unwrap();
            server.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
            let text = text.to_vec();
            thread::spawn(move || {
                let _ = client.write_all(&text);
                thread::sleep(Duration::from_millis(100));
            });
            read_query(&server).ok()
        };
        assert_eq!(ask(b"\"status\"\n"), Some(Query::Status));
        assert_eq!(ask(b"{\"get\":\"version\"}\nmore"), Some(Query::Get("version".into())));
        assert_eq!(ask(b"\"status\""), None, "a silent client is dropped");
        assert_eq!(ask(b"\"stat\"\n"), None);
        let long = [b"\"".as_slice(), &vec![b'x'; LONGEST_QUERY], b"\"\n"].concat();
        assert_eq!(ask(&long), None);
    }

    #[test]
    fn a_socket_that_was_left_is_replaced_and_the_own_one_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let published = |hidden: &str| {
            let (listener, path) = (UnixListener::bind(path(hidden)).unwrap(), path(hidden));
            let identity = identity(&path).unwrap();
            let mut socket = Socket { listener, path, is_published: false, identity };
            socket.publish((0, 7)).unwrap();
            socket
        };
        // Of processes that were killed.
        drop(UnixListener::bind(path("0-7.sock")).unwrap());
        drop(UnixListener::bind(path("0-8.sock")).unwrap());
        let other = UnixListener::bind(path("0-9.sock")).unwrap();
        // As any user may do who can list the directory.
        let held = fs::File::open(dir.path()).unwrap();
        flock(&held, FlockOperation::LockExclusive).unwrap();
        let socket = published(".1");
        let entries = || {
            let mut names: Vec<_> =
                fs::read_dir(dir.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(entries(), [".lock", "0-7.sock", "0-9.sock"]);
        UnixStream::connect(path("0-7.sock")).unwrap();
        socket.listener.accept().unwrap();
        drop(other);
        // A successor takes the name; the one before then leaves it alone.
        let successor = published(".2");
        drop(socket);
        assert_eq!(entries(), [".lock", "0-7.sock"], "the other one was dead by then");
        drop(successor);
        assert_eq!(entries(), [".lock"]);
    }
}
