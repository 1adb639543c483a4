"""A writer, which is killed ten times, and two readers. lmdb_load.py DIRECTORY write|writemap

Every transaction replaces a hundred values and their sum. Each reader must always find a sum that fits, and the writer all that
it had committed."""

import hashlib
import os
import random
import signal
import sys
import time

import lmdb


def open_env(path, writemap):
    return lmdb.open(path, map_size=1 << 30, writemap=writemap, max_readers=64)


def digest(txn):
    found = hashlib.sha256()
    for key, value in txn.cursor():
        if key != b"digest":
            found.update(key + value)
    return found.digest()


def write(path, writemap, pipe, seed):
    env = open_env(path, writemap)
    rng = random.Random(seed)
    while True:
        with env.begin(write=True) as txn:
            number = int(txn.get(b"number", b"0")) + 1
            for _ in range(20):
                txn.put(b"key%04d" % rng.randrange(300), rng.randbytes(rng.randrange(6000)))
                txn.delete(b"key%04d" % rng.randrange(300))
            txn.put(b"number", b"%d" % number)
            txn.put(b"digest", digest(txn))
        os.write(pipe, b"%d\n" % number)


def check(env):
    with env.begin() as txn:
        if txn.get(b"digest", digest(txn)) != digest(txn):
            sys.exit("the values do not belong to one transaction")
        return int(txn.get(b"number", b"0"))


def read(path, writemap):
    env = open_env(path, writemap)
    last = 0
    while True:
        number = check(env)
        if number < last:
            sys.exit("went back from %d to %d" % (last, number))
        last = number


def child(run, *args):
    pid = os.fork()
    if pid == 0:
        run(*args)
    return pid


def check_after(path, writemap, last):
    found = check(open_env(path, writemap))
    if found < last:
        sys.exit("%d was committed, %d is there" % (last, found))
    os._exit(0)


def main(path, how):
    writemap = how == "writemap"
    readers = [child(read, path, writemap) for _ in range(2)]
    for round in range(10):
        ours, theirs = os.pipe()
        writer = child(write, path, writemap, theirs, round)
        os.close(theirs)
        time.sleep(1)
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        acknowledged = open(ours).read().split("\n")[:-1]
        # In a process of its own: LMDB allows a process to open a file only once.
        checker = child(check_after, path, writemap, int(acknowledged[-1]))
        if os.waitpid(checker, 0)[1] != 0:
            sys.exit("wrong after a kill")
    for reader in readers:
        if os.waitpid(reader, os.WNOHANG) != (0, 0):
            sys.exit("a reader has failed")
        os.kill(reader, signal.SIGKILL)
        os.waitpid(reader, 0)


main(*sys.argv[1:])
