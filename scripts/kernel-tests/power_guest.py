"""What happens in the virtual machine between two power cuts. power_guest.py FILESYSTEM,... STORY SEED

Mounts a pool over disks that are nearly full, compares every name with what the story of the machine's earlier lives tells,
and then works in the pool until the power is cut. The story is what this program prints, each line after `@`:

    ? NAME STATE    the name is about to get this state
    ~ NAME STATE    it has, but a power cut may take it back to one that it had since the last line with !
    ! NAME STATE    it has, and fsync(2) has returned: no power cut may take it back
    x NAME          it could not get it, for lack of space
    wrong ...       something was lost
    begin           all is right, and the work begins

A state is the version of a file's content, or of a log the number of its records; 0 if there is no such name."""

import errno
import fcntl
import functools
import os
import random
import struct
import subprocess
import sys
import termios

POOL = "/pool"
WORKERS = 3
FILES = 8
MOST_RECORDS = 150
LARGEST = 3 << 20
# What is free on each disk before the work begins.
ROOM = 40 << 20
# Names that the pool hides begin so. The next mount removes them.
HIDDEN = ".canopy-clone."


def say(*words):
    """Returns once the line has left the machine."""
    os.write(1, ("@ %s\n" % " ".join(map(str, words))).encode())
    termios.tcdrain(1)


def content(name, version):
    chance = random.Random("%s %d" % (name, version))
    size = chance.choice([100, 5000, 70_000, LARGEST // 2, LARGEST])
    return ("%s %d\n" % (name, version)).encode() + chance.randbytes(size)


def record(name, number):
    chance = random.Random("%s, record %d" % (name, number))
    return chance.randbytes(chance.choice([300, 9000, 250_000]))


@functools.lru_cache(maxsize=None)
def record_size(name, number):
    return len(record(name, number))


def size_of_log(name, records):
    return sum(record_size(name, number) for number in range(records))


def stir(seed):
    """Gives the kernel other random numbers than in its other lives, which began with the same memory."""
    add, reseed, entropy = 0x40085203, 0x5207, seed.encode().ljust(32)
    with open("/dev/urandom", "wb") as device:
        fcntl.ioctl(device, add, struct.pack("ii", 8 * len(entropy), len(entropy)) + entropy)
        fcntl.ioctl(device, reseed)


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def sync_directory(path):
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write(path, data, flags):
    file = os.open(path, os.O_WRONLY | flags, 0o644)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
        os.fsync(file)
    finally:
        os.close(file)


def mount(kinds):
    """Makes the disks at first, and mounts them and the pool. Returns where they are."""
    disks = ["/disks/%s%d" % (kind, number) for number, kind in enumerate(kinds)]
    for disk, kind, letter in zip(disks, kinds, "abcdefgh"):
        device = "/dev/vd" + letter
        os.makedirs(disk)
        fresh = subprocess.run(["blkid", device], stdout=subprocess.DEVNULL).returncode != 0
        if fresh:
            subprocess.run(["mkfs." + kind, "-q", device], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["mount", "-t", kind, device, disk], check=True)
        if fresh:
            space = os.statvfs(disk)
            ballast = os.open(disk + "/ballast", os.O_CREAT | os.O_WRONLY)
            os.posix_fallocate(ballast, 0, space.f_bavail * space.f_frsize - ROOM)
            os.close(ballast)
    os.sync()
    os.makedirs(POOL)
    options = "moveonenospc=true,minfreespace=2M,category.create=rand"
    subprocess.run(["canopy", "mount", "-o", options, ":".join(disks), POOL], check=True)
    return disks


def parse(story):
    """Returns the state of each name that is on disk, and those that it may have got since."""
    kept, coming = {}, {}
    with open(story) as lines:
        for line in lines:
            kind, name, *state = line.split()[1:] + [""]
            if kind == "?":
                coming.setdefault(name, []).append(int(state[0]))
            elif kind == "!":
                kept[name] = int(state[0])
                coming.pop(name, None)
            elif kind == "x":
                coming[name].pop()
    return kept, coming


def state_of(path, name, kept):
    """Returns the state of a name, or what is wrong with it."""
    data = read(path)
    if data is None:
        return 0
    if os.path.basename(name) != "log":
        head = data[:100].split(b"\n")[0].split(b" ")
        # A link shows the content of the file that it was made from.
        if len(head) != 2 or not head[1].isdigit() or data != content(head[0].decode(), int(head[1])):
            return "it has %d bytes that were never written so" % len(data)
        return int(head[1])
    number, at = 0, 0
    while at < len(data):
        next_one = record(name, number)
        if data[at : at + len(next_one)] != next_one:
            break
        number, at = number + 1, at + len(next_one)
    if number > kept:
        # Of what was not acknowledged only whole records stay, as after any crash.
        os.truncate(path, at)
        write(path, b"", 0)
    return number


def check(disks, story):
    """Compares everything with the story, and tells what is wrong."""
    kept, coming = parse(story)
    for name in sorted(set(kept) | set(coming)):
        before = kept.get(name, 0)
        found = state_of(os.path.join(POOL, name), name, before)
        possible = {before, *coming.get(name, [])}
        if found not in possible:
            say("wrong:", name, "is", found, "and should be one of", sorted(possible))
        copies = [disk for disk in disks if os.path.lexists(os.path.join(disk, name))]
        shown = read(os.path.join(POOL, name))
        for disk in disks:
            copy = os.path.join(disk, name)
            if read(copy) in (shown, None):
                continue
            if name not in coming:
                say("wrong:", name, "is different on", disk)
            # What was not acknowledged may be half done: the new file is there, and the old one on its branch.
            os.unlink(copy)
        if os.path.basename(name) == "log" and found == before and found > 0:
            # Drops half a record behind those that count.
            os.truncate(os.path.join(POOL, name), size_of_log(name, found))
            write(os.path.join(POOL, name), b"", 0)
        say("!", name, found)
        kept[name] = found
    for disk in disks:
        for directory, _, files in os.walk(disk):
            for file in files:
                if file.startswith(HIDDEN):
                    say("wrong:", os.path.join(directory, file), "is left")
    os.sync()
    return kept


class Worker:
    def __init__(self, number, kept, seed):
        self.home = "w%d" % number
        self.kept = kept
        self.chance = random.Random("%s %s" % (seed, number))
        self.made = 0

    def path(self, name):
        return os.path.join(POOL, name)

    def temporary(self):
        self.made += 1
        return self.path("%s/temporary%d" % (self.home, self.made))

    def step(self, name, state, act, synced=True):
        say("?", name, state)
        try:
            act()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            say("x", name)
            return False
        say("!" if synced else "~", name, state)
        self.kept[name] = state
        return True

    def replace(self, name):
        """As editors and package managers do: a new file takes the place of the old one. Not all of them sync the directory."""
        version = self.kept.get(name, 0) + 1
        temporary = self.temporary()
        # By the directory, by the file once more, or not at all.
        sync = self.chance.choice(["directory", "file", ""])

        def act():
            try:
                write(temporary, content(name, version), os.O_CREAT | os.O_EXCL)
                os.rename(temporary, self.path(name))
            except OSError:
                os.unlink(temporary)
                raise
            if sync == "directory":
                sync_directory(self.path(self.home))
            elif sync == "file":
                write(self.path(name), b"", 0)

        return self.step(name, version, act, sync != "")

    def append(self, name):
        number = self.kept.get(name, 0)
        end = size_of_log(name, number)

        def act():
            try:
                write(self.path(name), record(name, number), os.O_CREAT | os.O_APPEND)
            except OSError:
                os.truncate(self.path(name), end)
                raise

        return self.step(name, number + 1, act)

    def remove(self, name):
        def act():
            os.unlink(self.path(name))
            sync_directory(self.path(self.home))

        return self.step(name, 0, act)

    def work(self):
        names = ["%s/f%d" % (self.home, number) for number in range(FILES)]
        log = self.home + "/log"
        while True:
            dice = self.chance.random()
            name = self.chance.choice(names)
            if self.kept.get(log, 0) >= MOST_RECORDS:
                done = self.remove(log)
            elif dice < 0.5:
                done = self.append(log)
            elif dice < 0.9 or not self.kept.get(name):
                done = self.replace(name)
            else:
                done = self.remove(name)
            if not done:
                there = [name for name in names + [log] if self.kept.get(name)]
                if there:
                    self.remove(self.chance.choice(there))


def move(disks, kept, seed):
    """Moves files to and fro while others write them."""
    chance = random.Random(seed)
    names = sorted(kept) or ["w0/log"]
    while True:
        name = chance.choice(names)
        command = ["canopy", "move", os.path.join(POOL, name), "--to", chance.choice(disks), "--eager", "--quiet"]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main(kinds, story, seed):
    stir(seed)
    disks = mount(kinds.split(","))
    for number in range(WORKERS):
        os.makedirs("%s/w%d" % (POOL, number), exist_ok=True)
        sync_directory("%s/w%d" % (POOL, number))
    sync_directory(POOL)
    kept = check(disks, story)
    for number in range(WORKERS):
        for file in os.listdir("%s/w%d" % (POOL, number)):
            if file.startswith("temporary"):
                os.unlink("%s/w%d/%s" % (POOL, number, file))
    if seed == "last":
        subprocess.run(["canopy", "umount", POOL], check=True)
        return
    say("begin")
    for number in range(WORKERS):
        if os.fork() == 0:
            try:
                Worker(number, {n: s for n, s in kept.items() if n.startswith("w%d/" % number)}, seed).work()
            except Exception as error:
                say("wrong: worker", number, "met", repr(error))
                os._exit(1)
    move(disks, kept, seed)


main(*sys.argv[1:])
