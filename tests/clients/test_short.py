"""Resources that run short: room on the disk, and memory in large pages."""

import contextlib
import ctypes
import os
import re
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import nbd
from rig import MI, Skip, check, run, serve, until

ENOSPC = 28
PR_SET_THP_DISABLE = 41


@contextlib.contextmanager
def small_file_systems():
    """File systems of some 40 MB, by name: one in memory, one on a disk."""
    with tempfile.TemporaryDirectory(prefix="fairq-full-") as folder:
        image, mounts = os.path.join(folder, "image"), {}
        with open(image, "wb") as f:
            f.truncate(48 * MI)
        run("mkfs.ext4", "-q", image, ok=False)
        for name, how in (("tmpfs", ["-t", "tmpfs", "-o", "size=40m", "none"]), ("ext4", ["-o", "loop", image])):
            where = os.path.join(folder, name)
            os.mkdir(where)
            if run("mount", *how, where, ok=False).returncode == 0:
                mounts[name] = where
        try:
            if not mounts:
                raise Skip("cannot mount anything here: needs root")
            yield mounts
        finally:
            for where in mounts.values():
                run("umount", "-l", where)


def test_full_disk():
    """A sparse file grows until its file system is full: only writes that do not fit fail, and the log says so."""
    with small_file_systems() as mounts:
        with ThreadPoolExecutor() as threads:
            fitted = dict(zip(mounts, threads.map(lambda where: [fill(where, how) for how in ("", ",direct=off")], mounts.values())))
    return f"MiB of 64 that fitted: {fitted}"


def fill(where, how):
    path = os.path.join(where, "disk")
    device = f"file,path={path},size=80M,create{how}"
    with serve("--device", device, "--tenant", "a=64M", "--tenant", "b=16M") as server:
        a, b = (nbd.Client(server.socket, name) for name in "ab")
        check(b.ask(nbd.WRITE, 0, data=b"b" * MI)[0] == 0, "b writes while there is room")
        errors = [a.ask(nbd.WRITE, at * MI, data=b"a" * MI)[0] for at in range(64)]
        fitted = errors.count(0)
        check(20 < fitted < 60 and set(errors) == {0, ENOSPC}, f"answers of a: {fitted} of 64 good, {set(errors)}")
        for at in range(64):
            if errors[at] == 0:
                check(a.ask(nbd.READ, at * MI, MI) == (0, b"a" * MI), f"a reads {at} MiB")
        check(b.ask(nbd.WRITE, 0, data=b"B" * MI)[0] == 0 and b.ask(nbd.FLUSH)[0] == 0, "b writes what it has")
        check(b.ask(nbd.READ, 0, MI) == (0, b"B" * MI), "b reads it")
        until(lambda: "fails requests" in server.said(), 10, "the log reports it")
        # The writes still fail in the next second, but the log gets no second line.
        failing = time.monotonic() + 1.5
        while time.monotonic() < failing:
            check(a.ask(nbd.WRITE, 63 * MI, data=b"a" * MI)[0] == ENOSPC, "it is still full")
        told = [line for line in server.said().splitlines() if "fails requests" in line]
        check(len(told) == 1 and "No space left" in told[0] and '"tenant":"a"' in told[0], f"the log: {told}")
        check(a.ask(nbd.TRIM, 0, 16 * MI)[0] == 0, "a gives room back")
        check(a.ask(nbd.WRITE, 63 * MI, data=b"z" * MI)[0] == 0, "and can write again")
    os.remove(path)
    os.remove(path + ".layout")
    return fitted


def test_no_large_pages():
    """Buffers are in large pages if there are any, and work as well in small ones."""
    large = {is_off: large_page_kib(is_off) for is_off in (0, 1)}
    check(large[1] == 0, f"{large[1]} KiB in large pages, of which there are none")
    return f"{large[0]} KiB in large pages where there are some"


def large_page_kib(is_off):
    def forbid():
        ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, is_off, 0, 0, 0)

    with tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        device = f"file,path={folder}/disk,size=64M,create"
        with serve("--device", device, "--tenant", "a=64M", preexec_fn=forbid) as server:
            client = nbd.Client(server.socket, "a")
            data = {at: os.urandom(MI) for at in range(32)}
            sent = {client.send(nbd.WRITE, at * MI, data=data[at]) for at in data}
            for _ in data:
                cookie, error, _ = client.receive()
                check(error == 0 and cookie in sent, f"a write failed: {error}")
            for at, written in data.items():
                check(client.ask(nbd.READ, at * MI, MI) == (0, written), f"{at} MiB is not what was written")
            with open(f"/proc/{server.child.pid}/smaps_rollup", encoding="utf-8") as f:
                return int(re.search(r"AnonHugePages: +(\d+)", f.read())[1])
