"""Reads files that are being written elsewhere, by read and by mapping. player.py HERE SOURCE

Each byte is zero or what it will be, and once it has been seen, by either way, it stays for both."""

import mmap
import os
import random
import signal
import sys

BLOCK = 4096
ended = False


def end(*_):
    global ended
    ended = True


def look(file, wanted, size):
    """Returns how many blocks had arrived."""
    arrived = 0
    with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped:
        for _ in range(50):
            at = random.randrange(0, size, BLOCK)
            length = min(BLOCK, size - at)
            right = os.pread(wanted.fileno(), length, at)
            seen = [os.pread(file.fileno(), length, at), mapped[at : at + length], os.pread(file.fileno(), length, at)]
            whole = False
            for data in seen:
                if whole and data != right:
                    sys.exit("%s at %d: what was seen is gone" % (file.name, at))
                whole = data == right
                if not whole and any(byte not in (0, other) for byte, other in zip(data, right)):
                    sys.exit("%s at %d: wrong data" % (file.name, at))
            arrived += whole
    return arrived


def main(here, source):
    signal.signal(signal.SIGTERM, end)
    arrived = 0
    while not ended:
        for name in os.listdir(source):
            try:
                file = open(os.path.join(here, name), "rb")
            except FileNotFoundError:
                continue
            with file, open(os.path.join(source, name), "rb") as wanted:
                size = os.fstat(file.fileno()).st_size
                if size > 0:
                    arrived += look(file, wanted, size)
    if arrived == 0:
        sys.exit("saw nothing")


main(*sys.argv[1:])
