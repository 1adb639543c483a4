//! The thread that looks at the callers' namespaces, where no other may.
//!
//! Root's shell has more capabilities than a worker, so that a worker may not look at it without CAP_SYS_PTRACE, and with
//! `landlock` not even so. This thread has that capability and no other, is outside of the sandbox, and does nothing else.

use super::drop_all_but;
use canopy_pool::door::{self, Look, Namespaces};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet as Caps, capabilities, set_no_new_privs};
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread;

const NAME: &str = "canopy-door";

/// A question about a task, and where the answer goes.
type Question = (u32, Sender<Namespaces>);

/// Starts the thread. To be called before this one gives its capabilities up.
pub(super) fn start() -> io::Result<Box<Look>> {
    let (ask, questions) = channel::<Question>();
    thread::Builder::new().name(NAME.into()).spawn(move || {
        if let Err(errno) = give_up_the_rest() {
            tracing::warn!("the thread that looks at callers cannot drop its capabilities: {errno}");
        }
        for (pid, answer) in questions {
            // Whoever asked has gone if that fails.
            let _ = answer.send(door::look(pid));
        }
    })?;
    Ok(Box::new(move |pid| {
        let (answer, answers) = channel();
        let asked = ask.send((pid, answer)).ok().and_then(|()| answers.recv().ok());
        asked.unwrap_or_default()
    }))
}

/// Keeps the one capability that looking requires. Where it is lacking, as in most containers, the kernel lets a thread
/// look at tasks that have no more capabilities than itself, so this one keeps what it was given.
fn give_up_the_rest() -> Result<(), Errno> {
    let held = capabilities(None)?.permitted;
    if held.contains(Caps::SYS_PTRACE) {
        drop_all_but(Caps::SYS_PTRACE)?;
    }
    if held.is_empty() { Ok(()) } else { set_no_new_privs(true) }
}
