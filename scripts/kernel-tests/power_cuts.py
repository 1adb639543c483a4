"""Cuts the power of a virtual machine that works in a pool, again and again. power_cuts.py CUTS DIRECTORY FILESYSTEM,... COMMAND...

The command runs qemu; the initial root filesystem is DIRECTORY/initrd, and its run of power_guest.py is told where the story is.
A cut kills qemu. What the machine wrote since a disk's last flush may be lost, as from a disk's own cache: each of these writes
is kept or not, by chance. The story of what was acknowledged goes with the next life of the machine, which compares."""

import os
import random
import re
import shutil
import struct
import subprocess
import sys
import time

DISK = 320 << 20
SECTOR = 512
# Flags of a write in qemu's log, which has the form of the kernel's dm-log-writes.
FLUSH, FUA, DISCARD = 1, 2, 4
# How long the machine may take to come up and compare, in seconds.
PATIENCE = 900


def writes(log):
    """Returns the writes in a log, each as its flags, position and data."""
    found = []
    with open(log, "rb") as file:
        head = file.read(28)
        if len(head) < 28:
            return found
        size = struct.unpack("<QQQI", head)[3]
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
    flushed = max((number for number, (flags, _, _) in enumerate(logged) if flags & FLUSH), default=0)
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
    def __init__(self, directory, filesystems, command):
        self.directory, self.filesystems, self.command = directory, filesystems, command
        self.story = []
        self.images = [os.path.join(directory, "disk%d" % number) for number in range(filesystems.count(",") + 1)]
        for image in self.images:
            with open(image, "wb") as file:
                file.truncate(DISK)

    def start(self, seed, logs):
        """Boots, with the story so far. With `logs`, what is written to a disk goes there and not to its image."""
        root = os.path.join(self.directory, "power")
        with open(os.path.join(root, "story"), "w") as file:
            file.writelines(self.story)
        with open(os.path.join(root, "run-tests"), "w") as file:
            file.write("modprobe -a virtio_pci virtio_blk ext4 xfs btrfs\n")
            file.write("exec python3 /power_guest.py %s /story %s\n" % (self.filesystems, seed))
        initrd = os.path.join(self.directory, "initrd-power")
        shutil.copyfile(os.path.join(self.directory, "initrd"), initrd)
        names = "\n".join(["run-tests", "story", "power_guest.py"]).encode()
        packed = subprocess.run(
            ["cpio", "--create", "--format=newc", "--owner=0:0", "--quiet"], cwd=root, input=names, check=True, stdout=subprocess.PIPE
        )
        with open(initrd, "ab") as file:
            file.write(packed.stdout)
        self.console = os.path.join(self.directory, "console")
        command = [*self.command, "-initrd", initrd, "-serial", "file:" + self.console]
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
        with open(os.path.join(self.directory, "qemu"), "wb") as output:
            self.qemu = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def lines(self):
        """Returns what the machine has told so far."""
        with open(self.console, errors="replace") as file:
            whole = file.read()
        told = whole[: whole.rfind("\n") + 1]
        return [line + "\n" for line in re.findall(r"^.*?(@ (?:[?~!x]|wrong|begin).*?)\r?$", told, re.M)], whole

    def wait(self, done):
        """Waits until the machine has told something, or has ended."""
        since = time.monotonic()
        while True:
            told, whole = self.lines() if os.path.exists(self.console) else ([], "")
            if done(told):
                return
            if self.qemu.poll() is not None or time.monotonic() - since > PATIENCE:
                self.end()
                sys.exit("the machine did not come so far:\n%s\n%s" % (whole[-3000:], open(self.directory + "/qemu").read()[-2000:]))
            time.sleep(0.1)

    def end(self):
        self.qemu.kill()
        self.qemu.wait()
        told, _ = self.lines()
        os.unlink(self.console)
        wrong = [line for line in told if line.startswith("@ wrong")]
        if wrong:
            sys.exit("".join(wrong))
        self.story += [line for line in told if line != "@ begin\n"]


def main(cuts, directory, filesystems, *command):
    seed = random.randrange(1 << 32)
    print("power cuts: seed %d" % seed, flush=True)
    chance = random.Random(seed)
    machine = Machine(directory, filesystems, command)
    begun = lambda told: "@ begin\n" in told
    for number in range(int(cuts)):
        machine.start(number, logs=True)
        machine.wait(lambda told: begun(told) or any(line.startswith("@ wrong") for line in told))
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
    print("power cuts: %s on %s, nothing lost" % (cuts, filesystems))


main(*sys.argv[1:])
