"""A writer, which is killed ten times, and two readers. lmdb_load.py DIRECTORY write|writemap

Every transaction replaces a hundred values and their sum. Each reader must always find a sum that fits, and the writer all that
it had committed."""

import hashlib
import os
import random
import sys

import lmdb

from killed_writer import rounds


def open_env(path, writemap):
    return lmdb.open(path, map_size=1 << 30, writemap=writemap, max_readers=64)


def digest(txn):
    found = hashlib.sha256()
    for key, value in txn.cursor():
        if key != b"digest":
            found.update(key + value)
    return found.digest()


def write(path, writemap, seed, pipe):
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


def check_after(path, writemap, last):
    found = check(open_env(path, writemap))
    if found < last:
        sys.exit("%d was committed, %d is there" % (last, found))


def main(path, how):
    writemap = how == "writemap"
    rounds(read, write, check_after, path, writemap)


main(*sys.argv[1:])
