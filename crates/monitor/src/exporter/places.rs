//! Who is being served: a bounded number of connections, none of which can keep another out.
//!
//! A place is lost only while its client is what is waited for, and the oldest such one goes first. Whoever sends a whole
//! request at once and takes the answer at once is among the youngest.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A connection of either kind.
pub(super) trait Connection: Send + Sync + 'static {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize>;
    fn send(&self, data: &[u8]) -> io::Result<usize>;
    /// Limits how long one call of `receive` or `send` waits.
    fn set_patience(&self, time: Duration) -> io::Result<()>;
    /// Ends it, also for a thread that waits in `receive` or `send`.
    fn end(&self);
}

macro_rules! connection {
    ($kind:ty) => {
        impl Connection for $kind {
            fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
                (&mut &*self).read(buffer)
            }
            fn send(&self, data: &[u8]) -> io::Result<usize> {
                (&mut &*self).write(data)
            }
            fn set_patience(&self, time: Duration) -> io::Result<()> {
                self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
            }
            fn end(&self) {
                let _ = self.shutdown(Shutdown::Both);
            }
        }
    };
}

connection!(TcpStream);
connection!(UnixStream);

/// A client that is being served.
pub(super) struct Client {
    connection: Box<dyn Connection>,
    /// The client is to send or to take something.
    is_awaited: AtomicBool,
}

impl Client {
    /// Waits for the client, for `time` in all, with whatever `talk` sends and receives.
    pub(super) fn awaited<T>(
        &self,
        time: Duration,
        talk: impl FnOnce(&mut Talk<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        self.is_awaited.store(true, Ordering::Relaxed);
        let said = talk(&mut Talk { client: self, until: Instant::now() + time });
        self.is_awaited.store(false, Ordering::Relaxed);
        said
    }
}

/// A connection that must be done with by a certain time.
pub(super) struct Talk<'c> {
    client: &'c Client,
    until: Instant,
}

impl Talk<'_> {
    fn limited(&self) -> io::Result<&dyn Connection> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.client.connection.set_patience(left)?;
        Ok(&*self.client.connection)
    }
}

impl Read for Talk<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.limited()?.receive(buffer)
    }
}

impl Write for Talk<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.limited()?.send(data)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The clients that are being served, the oldest first.
pub(super) struct Places {
    most: usize,
    taken: Mutex<Vec<Arc<Client>>>,
    freed: Condvar,
}

impl Places {
    pub(super) fn new(most: usize) -> Places {
        Places { most, taken: Mutex::default(), freed: Condvar::new() }
    }

    /// Gives the connection a place, for which the oldest client that is waited for leaves. If none is, waits until one
    /// has been served.
    pub(super) fn take(&self, connection: impl Connection) -> Arc<Client> {
        // Until the client has sent its request, it is what is waited for.
        let client = Arc::new(Client { connection: Box::new(connection), is_awaited: AtomicBool::new(true) });
        let mut taken = self.lock();
        while taken.len() >= self.most {
            match taken.iter().position(|other| other.is_awaited.load(Ordering::Relaxed)) {
                Some(oldest) => taken.remove(oldest).connection.end(),
                None => taken = self.freed.wait(taken).unwrap_or_else(PoisonError::into_inner),
            }
        }
        taken.push(Arc::clone(&client));
        client
    }

    /// Gives the place back.
    pub(super) fn leave(&self, client: &Arc<Client>) {
        self.lock().retain(|other| !Arc::ptr_eq(other, client));
        self.freed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Client>>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().unwrap()
    }

    fn has_ended(stream: &mut UnixStream) -> bool {
        stream.set_nonblocking(true).unwrap();
        !matches!(stream.read(&mut [0]), Err(why) if why.kind() == ErrorKind::WouldBlock)
    }

    #[test]
    fn the_oldest_client_that_is_waited_for_leaves() {
        let places = Places::new(3);
        let (mut ours, theirs): (Vec<_>, Vec<_>) = (0..5).map(|_| pair()).unzip();
        let mut clients = Vec::new();
        for (number, connection) in theirs.into_iter().enumerate() {
            clients.push(places.take(connection));
            if number == 0 {
                // Has sent its request: the answer is being made.
                clients[0].is_awaited.store(false, Ordering::Relaxed);
            }
        }
        assert_eq!(ours.iter_mut().map(has_ended).collect::<Vec<_>>(), [false, true, true, false, false]);
        // One that has left in the meantime gives nobody's place back.
        places.leave(&clients[1]);
        assert_eq!(places.lock().len(), 3);
    }

    #[test]
    fn a_client_waits_for_those_whose_answers_are_being_made() {
        let places = Places::new(1);
        let (_one, first) = pair();
        let first = places.take(first);
        first.is_awaited.store(false, Ordering::Relaxed);
        thread::scope(|scope| {
            let second = scope.spawn(|| places.take(pair().1));
            thread::sleep(Duration::from_millis(50));
            assert!(!second.is_finished());
            places.leave(&first);
            second.join().unwrap();
        });
        assert_eq!(places.lock().len(), 1);
    }

    #[test]
    fn a_client_that_drips_has_no_more_time_than_one_that_is_silent() {
        let places = Places::new(1);
        let (mut ours, theirs) = pair();
        let client = places.take(theirs);
        let dripping = thread::spawn(move || {
            while ours.write_all(b"G").is_ok() {
                thread::sleep(Duration::from_millis(10));
            }
        });
        let why = client
            .awaited(Duration::from_millis(200), |talk| {
                loop {
                    talk.read_exact(&mut [0; 1])?;
                }
            })
            .map(|never: std::convert::Infallible| match never {});
        let kind = why.unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::TimedOut | ErrorKind::WouldBlock), "{kind}");
        // One that does not read is cut off as well. The other leaves for it.
        let (_ours, theirs) = pair();
        client.is_awaited.store(true, Ordering::Relaxed);
        let other = places.take(theirs);
        dripping.join().unwrap();
        let endless = other.awaited(Duration::from_millis(200), |talk| talk.write_all(&vec![0; 64 << 20]));
        assert!(endless.is_err());
    }
}
