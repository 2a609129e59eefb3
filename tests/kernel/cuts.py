"""Power cuts on a disk with a write cache, from a log of its writes and flushes (Linux' dm-log-writes).

cuts.py load SOCKET MARKS COUNT    in the guest: writers, and COUNT marks in the log, each with the promises made by then
cuts.py replay KIND LOG MARKS DISK on the host: for each mark, checks the promises against the disk after a power cut there

The log contains a write when a later flush, or the write's own FUA, has made it durable. So the writes in the log up to a
mark are the least that the disk has after a power cut at the mark. A disk may also have kept any of the later writes, up
to the next flush: every second cut has a random part of them."""

import json
import os
import random
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "clients"))
sys.dont_write_bytecode = True
import nbd  # noqa: E402
from test_durable import BLOCK, BLOCKS, Writer, content  # noqa: E402

EXPORTS = {"a": 0, "b": 16 << 20}
FLUSH, DISCARD, MARK = 1, 4, 8


def load(address, marks, count):
    history = {name: ({}, {}) for name in EXPORTS}
    writers = [
        Writer(address, name, range(half, BLOCKS, 2), history[name], 2 * half + (name == "a"))
        for name in EXPORTS
        for half in (0, 1)
    ]
    for writer in writers:
        writer.start()
    with open(marks, "w", encoding="utf-8") as file:
        for number in range(count):
            seen = sum(w.promises for w in writers)
            while sum(w.promises for w in writers) < seen + 50:
                dead = [w for w in writers if not w.is_alive()]
                assert not dead, f"a writer ended: {dead[0].error}"
                time.sleep(0.005)
            # Every promise made so far is in the log before the mark.
            promised = {name: dict(history[name][1]) for name in EXPORTS}
            subprocess.run(["dmsetup", "message", "logged", "0", "mark", f"m{number}"], check=True)
            file.write(json.dumps(promised) + "\n")
    for writer in writers:
        writer.client.s.close()


def entries(log):
    """The entries of the log, in order: (flags, offset, data or length or name)."""
    with open(log, "rb") as file:
        magic, _, number, size = struct.unpack("<QQQI", file.read(28))
        assert magic == 0x6A736677736872, "not a log"
        file.seek(size)
        for _ in range(number):
            sector, sectors, flags, length = struct.unpack("<QQQQ", file.read(32))
            rest = file.read(size - 32)
            if flags & MARK:
                yield flags, 0, rest[:length].rstrip(b"\0").decode()
            elif flags & DISCARD:
                yield flags, sector * size, sectors * size
            else:
                yield flags, sector * size, file.read(sectors * size)


def apply(disk, flags, offset, what):
    if flags & DISCARD:
        disk[offset : offset + what] = bytes(what)
    elif not flags & MARK:
        disk[offset : offset + len(what)] = what


def pool(kind, disk, folder):
    """The pool on this disk, after the repairs of a start after a power cut."""
    if kind == "bare":
        return disk
    image, out = os.path.join(folder, "cut.img"), os.path.join(folder, "cut.pool")
    with open(image, "wb") as file:
        file.write(disk)
    checked = subprocess.run(["e2fsck", "-fy", image], capture_output=True, text=True, check=False)
    assert checked.returncode in (0, 1), f"the file system is lost: {checked.stdout[-400:]}"
    subprocess.run(["debugfs", "-R", f"dump /pool.img {out}", image], capture_output=True, check=True)
    assert os.path.exists(out), "the pool is lost"
    with open(out, "rb") as file:
        data = file.read()
    os.remove(out)
    return data


def verify(data, mark, where):
    for name, base in EXPORTS.items():
        for index, floor in mark[name].items():
            index, at = int(index), base + int(index) * BLOCK
            block = data[at : at + BLOCK]
            found, generation = struct.unpack(">QQ", block[-16:].ljust(16, b"\0"))
            assert found == index and generation >= floor, (
                f"{where}: block {index} of {name} holds generation {generation} of {found}, {floor} was promised"
            )
            assert block == content(index, generation), f"{where}: block {index} of {name} is torn"


def replay(kind, log, marks, size):
    with open(marks, encoding="utf-8") as file:
        marks = [json.loads(line) for line in file]
    folder = os.path.dirname(log)
    logged = list(entries(log))
    disk, draw, promises, cut = bytearray(int(size)), random.Random(7), 0, 0
    for at, (flags, offset, what) in enumerate(logged):
        apply(disk, flags, offset, what)
        if not flags & MARK or not what.startswith("m"):
            continue
        left, later = bytearray(disk), 0
        if cut % 2:
            for entry in logged[at + 1 :]:
                # A flush waits for earlier writes, so entries from a flush on are not applied.
                if entry[0] & FLUSH or later > 64:
                    break
                if draw.random() < 0.5:
                    apply(left, *entry)
                    later += 1
        mark = marks[int(what[1:])]
        verify(pool(kind, bytes(left), folder), mark, f"cut {cut}, {kind}")
        promises += sum(len(floors) for floors in mark.values())
        cut += 1
    assert cut == len(marks), f"the log has {cut} of {len(marks)} marks"
    print(f"{cut} power cuts, {promises} promises kept")


if __name__ == "__main__":
    if sys.argv[1] == "load":
        load(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        replay(*sys.argv[2:])
