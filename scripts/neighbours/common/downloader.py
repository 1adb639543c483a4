"""Allocates files and fills them in pieces, in any order. downloader.py HERE SOURCE nothing|truncate|fallocate|keep-size|zeros|mapped"""

import ctypes
import mmap
import os
import random
import sys

PIECE = 64 * 1024
FALLOC_FL_KEEP_SIZE = 1


def allocate(fd, size, how):
    if how in ("truncate", "mapped"):
        os.ftruncate(fd, size)
    elif how == "fallocate":
        os.posix_fallocate(fd, 0, size)
    elif how == "keep-size":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.fallocate(fd, FALLOC_FL_KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(size)) != 0:
            sys.exit("fallocate: %s" % os.strerror(ctypes.get_errno()))
    elif how == "zeros":
        # In pieces, as clients do. While one write makes the file longer, the kernel tells the length that it has on the branch,
        # but maps only what was there before (fs/fuse/file.c FUSE_I_SIZE_UNSTABLE): SIGBUS for a player that maps all of it.
        for at in range(0, size, PIECE):
            os.pwrite(fd, bytes(min(PIECE, size - at)), at)


def main(here, source, how):
    files, pieces = {}, []
    for name in os.listdir(source):
        with open(os.path.join(source, name), "rb") as file:
            data = file.read()
        fd = os.open(os.path.join(here, name), os.O_RDWR | os.O_CREAT, 0o644)
        allocate(fd, len(data), how)
        mapped = mmap.mmap(fd, len(data)) if how == "mapped" else None
        files[name] = (fd, data, mapped)
        pieces += [(name, at) for at in range(0, len(data), PIECE)]
    random.shuffle(pieces)
    for name, at in pieces:
        fd, data, mapped = files[name]
        piece = data[at : at + PIECE]
        if mapped is not None:
            mapped[at : at + len(piece)] = piece
        else:
            os.pwrite(fd, piece, at)
        # As a client that checks the piece.
        if os.pread(fd, len(piece), at) != piece:
            sys.exit("%s at %d is not what was written" % (name, at))
    for fd, _, _ in files.values():
        os.fsync(fd)


main(*sys.argv[1:])
