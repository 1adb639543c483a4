"""A writer, which is killed ten times, and two readers. sqlite_load.py FILE delete|truncate|persist|wal

Every transaction moves an amount between two of a hundred accounts and adds a line to the book. Each reader must always find the
same sum, and the book must have all that the writer had committed."""

import os
import random
import sqlite3
import sys

from killed_writer import rounds

ACCOUNTS = 100


def connect(path, journal):
    db = sqlite3.connect(path, timeout=60, isolation_level=None)
    db.execute("pragma journal_mode = %s" % journal)
    db.execute("pragma synchronous = full")
    return db


def write(path, journal, seed, pipe):
    db = connect(path, journal)
    rng = random.Random(seed)
    while True:
        db.execute("begin immediate")
        one, other = rng.sample(range(ACCOUNTS), 2)
        amount = rng.randrange(1000)
        db.execute("update account set balance = balance - ? where id = ?", (amount, one))
        db.execute("update account set balance = balance + ? where id = ?", (amount, other))
        number = db.execute(
            "insert into book (amount, filler) values (?, ?)", (amount, rng.randbytes(rng.randrange(5000)))
        ).lastrowid
        db.execute("commit")
        os.write(pipe, b"%d\n" % number)


def check(db):
    if db.execute("select sum(balance) from account").fetchone() != (0,):
        sys.exit("the sum differs")


def read(path, journal):
    db = connect(path, journal)
    last = 0
    while True:
        check(db)
        number = db.execute("select max(id) from book").fetchone()[0] or 0
        if number < last:
            sys.exit("went back from %d to %d" % (last, number))
        last = number


def check_after(path, journal, last):
    db = connect(path, journal)
    check(db)
    if db.execute("pragma integrity_check").fetchall() != [("ok",)]:
        sys.exit("integrity_check has found something")
    lines, highest = db.execute("select count(*), max(id) from book").fetchone()
    if not last <= lines == highest:
        sys.exit("%d were committed, %d lines up to %d are there" % (last, lines, highest))


def main(path, journal):
    db = connect(path, journal)
    db.execute("create table account (id integer primary key, balance integer)")
    db.execute("create table book (id integer primary key, amount integer, filler blob)")
    db.executemany("insert into account values (?, 0)", ((id,) for id in range(ACCOUNTS)))
    db.close()
    rounds(read, write, check_after, path, journal)


main(*sys.argv[1:])
