#!/usr/bin/env python3
"""Records the picture of the README: runs the commands of a session in a terminal, and draws what it shows.
record.py PROGRAM PICTURE

PROGRAM is the canopy to show. The session has mounts and processes of its own, which end with it: three disks (tmpfs) below /mnt, and
nothing of this machine's fstab and pools. Needs root. Everything in the picture is what the programs have printed, but for the times
at which lines appear, and the process id, which is the same in each recording."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from html import escape

# What is typed, and for how many seconds a reader looks at the answer. A line without a command is a remark.
SESSION = [
    ("canopy mount '/mnt/disk*' /mnt/pool -o category.create=mfs", 1.5),
    ("cp -a films /mnt/pool", 1.5),
    ("ls /mnt/pool/films", 2.5),
    ("# Each file is whole on one disk:", 0.5),
    ("canopy ls /mnt/pool/films", 4),
    ("# Pull a disk out. The other files stay:", 0.5),
    ("umount --lazy /mnt/disk2", 1.5),
    ("ls /mnt/pool/films", 2.5),
    ("canopy status /mnt/pool", 0),
]
FILMS = ["alien.mkv", "brazil.mkv", "casablanca.mkv", "dune.mkv", "eraserhead.mkv", "fargo.mkv"]

COLUMNS, CELL, LINE, MARGIN = 80, 8.4, 18, 16
COLOURS = {"31": "#ff7b72", "32": "#7ee787", "33": "#e3b341", "34": "#79c0ff", "35": "#d2a8ff", "36": "#76e3ea", "90": "#8b949e"}
BACKGROUND, FOREGROUND, PROMPT, REMARK = "#0d1117", "#e6edf3", "#7ee787", "#8b949e"


def prepare(program):
    """Makes the disks, hides what belongs to this machine, and returns the directory in which the session takes place."""
    home = "/mnt/recording"
    subprocess.run(["mount", "-t", "tmpfs", "mnt", "/mnt"], check=True)
    for directory in ("/mnt/pool", f"{home}/bin", f"{home}/etc", f"{home}/films"):
        os.makedirs(directory)
    for disk in ("/mnt/disk1", "/mnt/disk2", "/mnt/disk3"):
        os.makedirs(disk)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8g", "disk", disk], check=True)
    if os.path.exists("/etc/fstab"):
        subprocess.run(["mount", "--bind", "/dev/null", "/etc/fstab"], check=True)
    with open(f"{home}/bin/canopy", "wb") as copy:
        copy.write(program)
    os.chmod(f"{home}/bin/canopy", 0o755)
    for number, film in enumerate(FILMS):
        with open(f"{home}/films/{film}", "wb") as file:
            file.write(bytes((30 + 7 * number) << 20))
        os.utime(f"{home}/films/{film}", (1_700_000_000, 1_700_000_000))
    os.environ.update(
        PATH=f"{home}/bin:" + os.environ["PATH"], CANOPY_CONFIG_DIR=f"{home}/etc", TERM="xterm-256color", LANG="C.UTF-8", TZ="UTC"
    )
    for name in ("NO_COLOR", "CI"):
        os.environ.pop(name, None)
    return home


def run(command, home):
    """Returns what a command shows in a terminal. It has to succeed."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    child = subprocess.Popen(["sh", "-c", command], cwd=home, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:
        pass  # the terminal's other side is closed
    os.close(ours)
    status = child.wait()
    # A pool without one of its disks is something that status reports.
    if status != (1 if command.startswith("canopy status") else 0):
        sys.exit(f"record: {command}: exit status {status}\n{shown.decode()}")
    return re.sub(r"pid \d+", "pid 1234", shown.decode()).replace("\r", "").rstrip("\n").split("\n") if shown else []


def runs(line):
    """Splits a line with colours into (column, style, text)."""
    column, style = 0, {}
    for piece in re.split(r"(\x1b\[[0-9;]*m)", line):
        codes = re.fullmatch(r"\x1b\[([0-9;]*)m", piece)
        if not codes:
            # Columns are placed one by one: viewers disagree about several blanks.
            for words in re.finditer(r"\S+(?: \S+)*", piece):
                yield column + words.start(), dict(style), words[0]
            column += len(piece)
            continue
        for code in codes[1].split(";"):
            if code in ("", "0"):
                style = {}
            elif code == "1":
                style["font-weight"] = "bold"
            elif code == "2":
                style["fill"] = COLOURS["90"]
            elif code in COLOURS:
                style["fill"] = COLOURS[code]


def text(row, column, content, style):
    x, y = MARGIN + column * CELL, MARGIN + 40 + row * LINE
    styles = f' style="{";".join(f"{name}:{value}" for name, value in style.items())}"' if style else ""
    # Its length keeps columns in line, whatever font the viewer has.
    return f'<text x="{x:.1f}" y="{y}" textLength="{len(content) * CELL:.1f}"{styles}>{escape(content)}</text>'


def draw(session):
    """Returns the picture. A viewer that does not move pictures shows all of it at once."""
    rows, at, drawn = 0, 0.5, []
    for command, answer, pause in session:
        group = []
        if command.startswith("#"):
            group.append(text(rows, 0, command, {"fill": REMARK}))
        else:
            group.append(text(rows, 0, "$", {"fill": PROMPT}))
            group.append(text(rows, 2, command, {"font-weight": "bold"}))
        rows += 1
        drawn.append(f'<g style="animation-delay:{at:.1f}s">{"".join(group)}</g>')
        at += 0.8
        group = []
        for line in answer:
            group += [text(rows, column, content, style) for column, style, content in runs(line)]
            rows += 1
        if group:
            drawn.append(f'<g style="animation-delay:{at:.1f}s">{"".join(group)}</g>')
        at += pause
    width, height = round(2 * MARGIN + COLUMNS * CELL), MARGIN + 40 + rows * LINE
    style = (
        f"text{{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:{FOREGROUND}}}"
        "g{animation:show .01s both}@keyframes show{from{opacity:0}to{opacity:1}}"
        "@media(prefers-reduced-motion:reduce){g{animation:none}}"
    )
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
        "<title>A terminal: three disks become one pool, files are copied to it, and a disk is pulled out</title>",
        f"<style>{style}</style>",
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>',
        *(f'<circle cx="{x}" cy="18" r="6" fill="{fill}"/>' for x, fill in ((20, "#ff5f56"), (40, "#ffbd2e"), (60, "#27c93f"))),
    ]
    return "\n".join([*head, *drawn, "</svg>"]) + "\n"


def main(program, picture):
    if os.environ.get("CANOPY_RECORDS") is None:
        os.environ["CANOPY_RECORDS"] = "inside"
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable]
        os.execvp(namespaces[0], [*namespaces, os.path.realpath(__file__), program, picture])
    # What is mounted below may hide both.
    with open(program, "rb") as original, open(picture, "w") as drawing:
        home = prepare(original.read())
        session = [(command, [] if command.startswith("#") else run(command, home), pause) for command, pause in SESSION]
        drawing.write(draw(session))


main(*sys.argv[1:])
