"""Reads from the page cache: clients get correct data even if the file changes its size or loses its cached pages
meanwhile."""

import contextlib
import os
import tempfile
import threading

import nbd
import rig
from rig import MI, check, finish, fio_args, need, run, serve, start, until

PIECE = 64 << 10
EIO = 5


@contextlib.contextmanager
def cached(size_mi, *more, tenants=None, hole=None):
    """A server over a file in the page cache; gives it and the file. `hole`: a range in MiB that has no data."""
    with tempfile.TemporaryDirectory(prefix="fairq-cached-") as folder:
        path = os.path.join(folder, "disk.img")
        with open(path, "wb") as f:
            for at in range(size_mi):
                f.seek(at * MI)
                if hole is None or at not in hole:
                    f.write(os.urandom(MI))
            f.truncate(size_mi * MI)
        tenants = tenants or ("--tenant", f"a={size_mi}M")
        with serve("--device", f"file,path={path},direct=off", *tenants, *more) as server:
            yield server, path


def content(path):
    with open(path, "rb") as f:
        return f.read()


def test_cached_copies():
    """nbdcopy, qemu-img and clients with simple and with structured replies read the same bytes, holes and odd ends among them."""
    need("nbdcopy", "qemu-img")
    with cached(48, hole=range(7, 19)) as (server, path):
        expected = content(path)
        for how in ([], ["--request-size=65536"], ["--connections=4", "--requests=32", "--request-size=1048576"], ["--no-extents"]):
            out = os.path.join(server.folder, "copy")
            run("nbdcopy", *how, server.uri("a"), out)
            check(content(out) == expected, f"nbdcopy {how} got something else")
        run("qemu-img", "compare", "-f", "raw", "-F", "raw", server.uri("a"), path)
        for structured in (False, True):
            client = nbd.Client(server.socket, "a", structured=structured)
            for offset, length in ((0, 16 << 10), (1, 100_000), (7 * MI - 5, 300_001), (48 * MI - 77_777, 77_777), (3, 32 * MI)):
                error, got = client.ask(nbd.READ, offset, length)
                check(error == 0 and got == expected[offset : offset + length], f"{length} at {offset}, structured {structured}")


def test_cached_verify():
    """fio writes and verifies, reads and writes mixed, through two connections at a time."""
    need("fio")
    with cached(96, tenants=("--tenant", "a=32M", "--tenant", "b=64M")) as (server, _):
        for bs in ("64k", "16k", "1m", "20k"):
            jobs = [fio_args(server.uri(name), rw="randrw", bs=bs, size="32M", iodepth=32, verify="crc32c", verify_fatal=1,
                             do_verify=1, verify_state_save=0, randrepeat=1, randseed=5) for name in "ab"]  # fmt: skip
            for job in finish([start([word for word in job if "norandommap" not in word]) for job in jobs]):
                check(job["read"]["total_ios"] > 0, f"{bs}: nothing was read")


def test_cached_truncated():
    """The file gets shorter and longer while it is read: lost data are errors, and the server keeps running."""
    with cached(64) as (server, path):
        whole = content(path)
        stop = threading.Event()

        def cut():
            with open(path, "r+b") as f:
                while not stop.is_set():
                    f.truncate(20 * MI + 12_345)
                    f.truncate(64 * MI)

        thread = threading.Thread(target=cut)
        thread.start()
        try:
            client = nbd.Client(server.socket, "a")
            for turn in range(300):
                offset = (turn * 7919 * 4096) % (60 * MI)
                error, got = client.ask(nbd.READ, offset, MI)
                kept = offset + MI <= 20 * MI + 12_345
                check(error in (0, EIO) and (error == 0 or not kept), f"error {error} at {offset}")
                check(error or not kept or got == whole[offset : offset + MI], f"what was there at {offset}")
        finally:
            stop.set()
            thread.join()
        client = nbd.Client(server.socket, "a")
        check(client.ask(nbd.READ, 30 * MI, MI)[0] == EIO, "an error behind the end, though it is longer again")
        check(client.ask(nbd.READ, 0, MI) == (0, whole[:MI]), "the rest is there")


def test_cached_evicted():
    """Data that leave the cache while a client does not read its socket come from the disk."""
    with cached(64) as (server, path):
        whole = content(path)
        client = nbd.Client(server.socket, "a")
        offsets = [at * 2 * MI for at in range(30)]
        cookies = {client.send(nbd.READ, offset, MI): offset for offset in offsets}
        other = nbd.Client(server.socket, "a")
        for _ in range(20):
            fd = os.open(path, os.O_RDWR)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
            check(other.ask(nbd.READ, 63 * MI, PIECE) == (0, whole[63 * MI : 63 * MI + PIECE]), "others are served")
        while cookies:
            cookie, error, got = client.receive()
            offset = cookies.pop(cookie)
            check(error == 0 and got == whole[offset : offset + MI], f"1 MiB at {offset}")


def test_cached_unread():
    """Clients that send many reads and take no reply delay no other client, and leave nothing behind."""
    with cached(64) as (server, path):
        fds = f"/proc/{server.child.pid}/fd"
        before = len(os.listdir(fds))
        idle = [nbd.Client(server.socket, "a") for _ in range(4)]
        for client in idle:
            for at in range(60):
                client.send(nbd.READ, at * MI, MI)
        other = nbd.Client(server.socket, "a")
        for at in range(100):
            check(other.ask(nbd.READ, at * 4 * PIECE, PIECE)[0] == 0, "the other one is served")
            check(other.ask(nbd.WRITE, at * 4 * PIECE, data=bytes([at]) * PIECE)[0] == 0, "and writes")
        with open(f"/proc/{server.child.pid}/status", encoding="utf-8") as f:
            resident = int(next(line for line in f if line.startswith("VmRSS")).split()[1])
        check(resident < 400 << 10, f"{resident} KiB for clients that do not read")
        for client in (*idle, other):
            client.s.close()
        until(lambda: len(os.listdir(fds)) <= before, 10, "sockets are closed")


def test_cached_stranger():
    """A removed tenant's client that has not read its socket does not get data there that the next tenant of the range writes."""
    with tempfile.TemporaryDirectory() as folder:
        control = os.path.join(folder, "ctl")
        with cached(32, "--control", control, tenants=("--tenant", "a=16M", "--tenant", "b=16M")) as (server, path):
            whole = content(path)
            client = nbd.Client(server.socket, "b")
            base = 16 * MI
            # More than a socket takes: the rest stays in the server.
            for at in range(64):
                client.send(nbd.READ, at * PIECE, PIECE)
            check(nbd.Client(server.socket, "b").ask(nbd.READ, 0, PIECE)[0] == 0, "served by then")
            ctl = lambda *words: run(rig.fairq(), "ctl", "--control", control, *words)  # noqa: E731
            ctl("remove", "b")
            ctl("add", "c=16M")
            stranger = until(lambda: opened(server.socket, "c"), 20, "the new tenant can be opened")
            for at in range(64):
                check(stranger.ask(nbd.WRITE, at * PIECE, data=b"secret!!" * (PIECE // 8))[0] == 0, "the new tenant writes")
            answered = 0
            with contextlib.suppress(nbd.Gone):
                for _ in range(64):
                    cookie, error, got = client.receive()
                    at = cookie - 1
                    check(b"secret" not in got, f"reply {at} has what the new tenant wrote")
                    check(error or got == whole[base + at * PIECE : base + (at + 1) * PIECE], f"reply {at}")
                    answered += not error
            check(answered > 4, f"{answered} answered")
            return f"{answered} of 64 answered"


def opened(address, export):
    try:
        return nbd.Client(address, export)
    except nbd.Refused:
        return None
