"""What loads of embedded databases share: a writer that is killed at work, and processes beside it."""

import os
import signal
import sys
import time


def child(run, *args):
    """Calls `run` in a process of its own, which ends with it, and returns its id."""
    pid = os.fork()
    if pid == 0:
        try:
            run(*args)
        except BaseException as why:
            print(why, file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return pid


def last_acknowledged(write, *args):
    """Kills `write` after a second. It has written a line to the descriptor that is its last argument for each transaction that
    is on disk. Returns the last line as a number."""
    ours, theirs = os.pipe()
    writer = child(write, *args, theirs)
    os.close(theirs)
    time.sleep(1)
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    with open(ours) as lines:
        return int(lines.read().split("\n")[-2])


def must_succeed(run, *args):
    """Calls `run` in a process of its own, as some databases let a process open a file only once."""
    if os.waitpid(child(run, *args), 0)[1] != 0:
        sys.exit("wrong after a kill")


def rounds(read, write, check_after, *args):
    """Kills a writer ten times beside two readers, which must not end by themselves. After each time, `check_after` looks
    whether what was acknowledged is there."""
    readers = [child(read, *args) for _ in range(2)]
    for seed in range(10):
        must_succeed(check_after, *args, last_acknowledged(write, *args, seed))
    for reader in readers:
        if os.waitpid(reader, os.WNOHANG) != (0, 0):
            sys.exit("a reader has failed")
        os.kill(reader, signal.SIGKILL)
        os.waitpid(reader, 0)
