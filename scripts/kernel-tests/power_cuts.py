"""Cuts the power of a virtual machine that works in a pool, again and again. power_cuts.py CUTS DIRECTORY FILESYSTEM,... COMMAND...

The command runs qemu; the initial root filesystem is DIRECTORY/initrd. Its /run-tests says `@ asleep` before it looks at a disk,
until it is given a seed and the time, and then runs power_guest.py, which finds the story on the last disk. A cut kills qemu. What the machine wrote since a disk's last flush may be lost, as from a disk's own cache: each of these writes
is kept or not, by chance. The story of what was acknowledged goes with the next life of the machine, which compares."""

import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

DISK = 320 << 20
SECTOR = 512
# Flags of a write in qemu's log, which has the form of the kernel's dm-log-writes.
FLUSH, FUA, DISCARD = 1, 2, 4
# How long the machine may take to come up and compare, in seconds.
PATIENCE = int(os.environ.get("KERNEL_TEST_SECONDS", "3600"))
# Room for the story.
STORY = 32 << 20
BEGIN, ASLEEP = "@ begin\n", "@ asleep\n"


def writes(log):
    """Returns the writes in a log, each as its flags, position and data."""
    found = []
    with open(log, "rb") as file:
        head = file.read(28)
        if len(head) < 28:
            return found
        # qemu writes the head at the first flush. Before that there is none, and the size is that of the disk's sectors.
        size = struct.unpack("<QQQI", head)[3] or SECTOR
        file.seek(size)
        while len(entry := file.read(32)) == 32:
            sector, sectors, flags, _ = struct.unpack("<QQQQ", entry)
            file.seek(size - 32, os.SEEK_CUR)
            data = b"" if flags & DISCARD else file.read(sectors * size)
            if len(data) < sectors * size and not flags & DISCARD:
                break
            found.append((flags, sector * size, data))
    return found


def cut(base, log, chance):
    """Makes the image what a disk keeps that was cut from its power: what was flushed, and some of the rest. Returns how many writes
    were lost, and of how many."""
    logged = writes(log)
    flushed = max((number for number, (flags, _, _) in enumerate(logged) if flags & FLUSH), default=-1)
    lost = 0
    with open(base, "r+b") as image:
        for number, (flags, position, data) in enumerate(logged):
            if number > flushed and not flags & FUA and chance.random() < 0.5:
                lost += 1
                continue
            image.seek(position)
            image.write(data)
    os.unlink(log)
    return "%d of %d" % (lost, len(logged))


class Machine:
    """The virtual machine. It boots once. Each of its lives begins with its memory as of then, when it had not yet looked at a disk."""

    def __init__(self, directory, filesystems, command):
        self.directory, self.filesystems, self.command = directory, filesystems, command
        self.story = []
        self.images = [os.path.join(directory, "disk%d" % number) for number in range(filesystems.count(",") + 1)]
        for image in self.images:
            with open(image, "wb") as file:
                file.truncate(DISK)
        self.console, self.errors, self.monitor, self.memory, self.story_disk = (
            os.path.join(directory, name) for name in ("console", "errors", "monitor", "memory", "story")
        )
        self.qemu = None

    def boot(self):
        """Boots, and keeps the memory."""
        monitor = "unix:%s,server=on,wait=off" % self.monitor
        self.run("-initrd", os.path.join(self.directory, "initrd"), "-monitor", monitor, logs=False)
        self.wait(lambda told: ASLEEP in told)
        with socket.socket(socket.AF_UNIX) as commands:
            commands.connect(self.monitor)
            commands.sendall(b'migrate "exec:cat >%s"\nquit\n' % self.memory.encode())
            self.qemu.wait(PATIENCE)
        self.kill()
        if not os.path.exists(self.memory) or os.path.getsize(self.memory) == 0:
            sys.exit("the machine's memory was not kept:\n" + self.output())

    def start(self, seed, logs):
        """Begins a life, with the story so far. With `logs`, what is written to a disk goes there and not to its image."""
        self.run("-incoming", "exec:cat " + self.memory, logs=logs)
        self.wait(lambda told: ASLEEP in told)
        # Not before: what is typed while the machine gets its memory would be lost.
        self.qemu.stdin.write(b"%s %d\n" % (str(seed).encode(), time.time()))

    def run(self, *arguments, logs):
        with open(self.story_disk, "w") as file:
            file.writelines(self.story)
            if file.tell() > STORY:
                sys.exit("the story is too long")
            file.truncate(STORY)
        command = [*self.command, *arguments, "-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"]
        for number, image in enumerate(self.images):
            node = "node-name=disk%d," % number
            if logs:
                shutil.copyfile(image, image + ".live")
                with open(image + ".log", "wb"):
                    pass
                node += "driver=blklogwrites,log.driver=file,log.filename=%s.log," % image
                node += "file.driver=raw,file.file.driver=file,file.file.filename=%s.live" % image
            else:
                node += "driver=raw,file.driver=file,file.filename=%s" % image
            command += ["-blockdev", node, "-device", "virtio-blk-pci,drive=disk%d" % number]
        command += ["-blockdev", "node-name=story,read-only=on,driver=raw,file.driver=file,file.filename=" + self.story_disk]
        command += ["-device", "virtio-blk-pci,drive=story"]
        with open(self.console, "wb") as output, open(self.errors, "wb") as errors:
            self.qemu = subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=output, stderr=errors)

    def output(self):
        with open(self.errors, errors="replace") as file:
            return file.read()[-2000:]

    def lines(self):
        """Returns what the machine has told so far."""
        with open(self.console, errors="replace") as file:
            whole = file.read()
        told = whole[: whole.rfind("\n") + 1]
        return [line + "\n" for line in re.findall(r"^.*?(@ (?:[?~!x]|wrong|begin|asleep).*?)\r?$", told, re.M)], whole

    def wait(self, done):
        """Waits until the machine has told something, or has ended."""
        since = time.monotonic()
        while True:
            told, whole = self.lines()
            if done(told):
                return
            if self.qemu.poll() is not None or time.monotonic() - since > PATIENCE:
                self.end()
                sys.exit("the machine did not come so far:\n%s\n%s" % (whole[-3000:], self.output()))
            time.sleep(0.1)

    def kill(self):
        if self.qemu is not None:
            self.qemu.kill()
            self.qemu.wait()
            self.qemu.stdin.close()
            self.qemu = None

    def end(self):
        self.kill()
        told, _ = self.lines()
        wrong = [line for line in told if line.startswith("@ wrong")]
        if wrong:
            sys.exit("".join(wrong))
        self.story += [line for line in told if line not in (BEGIN, ASLEEP)]


def cuts_of(machine, cuts, chance):
    machine.boot()
    for number in range(cuts):
        machine.start(chance.randrange(1 << 32), logs=True)
        machine.wait(lambda told: BEGIN in told or any(line.startswith("@ wrong") for line in told))
        time.sleep(chance.uniform(1, 12))
        before = len(machine.story)
        machine.end()
        acknowledged = sum(line.startswith("@ !") for line in machine.story[before:])
        lost = [cut(image, image + ".log", chance) for image in machine.images]
        for image in machine.images:
            os.unlink(image + ".live")
        print("cut %d: %d acknowledged, lost writes: %s" % (number + 1, acknowledged, ", ".join(lost)), flush=True)
    machine.start("last", logs=False)
    machine.qemu.wait(PATIENCE)
    machine.end()


def main(cuts, directory, filesystems, *command):
    # The machine ends with this program, also when that is told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    seed = random.randrange(1 << 32)
    print("power cuts: seed %d" % seed, flush=True)
    machine = Machine(directory, filesystems, command)
    try:
        cuts_of(machine, int(cuts), random.Random(seed))
    finally:
        machine.kill()
    print("power cuts: %s on %s, nothing lost" % (cuts, filesystems))


main(*sys.argv[1:])
