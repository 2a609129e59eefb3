"""Storage that fails: a block device with less room than its size, which fails when the kernel writes pages back."""

import contextlib
import os
import tempfile

import nbd
import rig
from rig import MI, Server, Skip, check, run, serve, until

EIO = 5


@contextlib.contextmanager
def overfull(size_mi, room_mi):
    """A block device of `size_mi` MiB with room for only `room_mi`: the page cache accepts all writes, and some are lost."""
    with tempfile.TemporaryDirectory(prefix="fairq-failing-") as folder:
        if run("mount", "-t", "tmpfs", "-o", f"size={room_mi}m", "none", folder, ok=False).returncode:
            raise Skip("cannot mount anything here: needs root")
        try:
            image = os.path.join(folder, "image")
            with open(image, "wb") as f:
                f.truncate(size_mi * MI)
            made = run("losetup", "--find", "--show", image, ok=False)
            if made.returncode:
                raise Skip(f"no loop device: {made.stderr.strip()}")
            try:
                yield made.stdout.strip()
            finally:
                run("losetup", "-d", made.stdout.strip())
        finally:
            run("umount", "-l", folder)


def test_failing_trim():
    """A TRIM with FUA is answered only when it is durable, so it gets the device's error."""
    for device in ("file,path={},direct=off", "nvme-soft,backing={},direct=off"):
        with overfull(32, 4) as disk, serve("--device", device.format(disk), "--tenant", "a=32M") as server:
            client = nbd.Client(server.socket, "a")
            check(client.ask(nbd.WRITE, 0, data=b"x" * 16 * MI)[0] == 0, "the page cache takes it")
            check(client.ask(nbd.TRIM, 24 * MI, MI)[0] == 0, "a TRIM without FUA promises nothing")
            check(client.ask(nbd.TRIM, 24 * MI, MI, flags=nbd.FUA)[0] == EIO, f"{device}: a durable TRIM got no error")


TENANTS = ("--tenant", "a=24M", "--tenant", "b=8M")


def ctl(control, *words):
    return run(rig.fairq(), "ctl", "--control", control, *words).stdout


def test_failing_flush():
    """Lost data are an error for the tenant that wrote them, whichever tenant flushes first, until the operator clears the error."""
    for device in ("file,path={},direct=off", "nvme-soft,backing={},direct=off"):
        with tempfile.TemporaryDirectory() as folder, overfull(32, 4) as disk:
            control, metrics = os.path.join(folder, "ctl"), os.path.join(folder, "metrics")
            flags = ("--control", control, "--metrics", f"unix:{metrics}")
            with serve("--device", device.format(disk), *TENANTS, *flags) as server:
                a, b = (nbd.Client(server.socket, name) for name in "ab")
                second = nbd.Client(server.socket, "a")
                check(a.ask(nbd.WRITE, 0, data=b"x" * 16 * MI)[0] == 0, "the page cache takes it")
                check(b.ask(nbd.FLUSH)[0] == 0, f"{device}: b wrote nothing, so nothing of it is lost")
                for client in (a, second, a):
                    check(client.ask(nbd.FLUSH)[0] == EIO, f"{device}: a's flush says that all is well")
                check(a.ask(nbd.WRITE, 0, data=b"x" * 4096, flags=nbd.FUA)[0] == EIO, "a's FUA writes fail, too")
                check(a.ask(nbd.TRIM, 0, 24 * MI)[0] == 0, "what was lost is given up, and there is room")
                check(b.ask(nbd.WRITE, 0, data=b"y" * 4096)[0] == 0 and b.ask(nbd.FLUSH)[0] == 0, "b is not concerned")
                check(a.ask(nbd.FLUSH)[0] == EIO, "a still is")
                until(lambda: "clear-error" in server.said(), 10, "the log says what to do")
                check("lost data    a: " in ctl(control, "status"), ctl(control, "status"))
                check("Input/output error" in ctl(control, "clear-error", "a"), "it says what was cleared")
                check("no error" in ctl(control, "clear-error", "a"), "there is nothing left to clear")
                check(second.ask(nbd.FLUSH)[0] == 0, "the operator has cleared it")


def test_failing_durable_write():
    """A FUA write that fails is followed by flushes that fail: the page cache no longer keeps its data to be written."""
    with overfull(32, 4) as disk, serve("--device", f"file,path={disk},direct=off", *TENANTS) as server:
        a, b = (nbd.Client(server.socket, name) for name in "ab")
        check(a.ask(nbd.WRITE, 0, data=b"x" * 16 * MI, flags=nbd.FUA)[0] != 0, "it does not fit")
        for _ in range(2):
            check(a.ask(nbd.FLUSH)[0] == EIO, "a flush after a FUA write that failed")
        check(b.ask(nbd.FLUSH)[0] == 0, "b wrote nothing")


def restarted_after_a_failure():
    """Returns false if the first server got the error from the kernel before it was killed, because the kernel reports each
    error once and the second server then does not get it."""
    with tempfile.TemporaryDirectory() as folder, overfull(32, 4) as disk:
        # While the device is open here, closing it elsewhere writes nothing back.
        held = os.open(disk, os.O_RDONLY)
        try:
            args = ("--device", f"file,path={disk},direct=off", *TENANTS)
            first = Server(folder, *args)
            check(nbd.Client(first.socket, "a").ask(nbd.WRITE, 0, data=b"x" * 16 * MI)[0] == 0, "the cache takes it")
            first.kill()
            os.remove(first.socket)
            second = Server(folder, *args)
            try:
                if "cannot be put on stable storage" not in second.said():
                    return False
                for name in "ab":
                    check(nbd.Client(second.socket, name).ask(nbd.FLUSH)[0] == EIO, f"{name} may have lost data")
            finally:
                second.kill()
        finally:
            os.close(held)
    return True


def test_failing_restart():
    """The data of a killed server are flushed before the next one serves; if that fails, all tenants get the error."""
    check(any(restarted_after_a_failure() for _ in range(20)), "none of 20 servers has found that its predecessor's data are lost")


def test_failing_is_remembered():
    """The error outlives a server that is killed after the kernel has reported it, and ends when the operator clears it."""
    with tempfile.TemporaryDirectory() as folder, overfull(32, 4) as disk:
        control, state = os.path.join(folder, "ctl"), os.path.join(folder, "state")
        # As long as a process has the device open, closing it writes nothing back.
        held = os.open(disk, os.O_RDONLY)
        servers = []

        def start(first="a", renamed=None):
            if servers:
                servers[-1].kill()
                os.remove(servers[-1].socket)
            if renamed:
                run(rig.fairq(), "layout", "rename", disk, renamed, first, env=dict(os.environ, STATE_DIRECTORY=state))
            tenants = ("--tenant", f"{first}=24M", "--tenant", "b=8M")
            servers.append(Server(folder, "--device", f"file,path={disk},direct=off", "--control", control, *tenants))
            return [nbd.Client(servers[-1].socket, name) for name in (first, "b")]

        def files():
            return [name for name in os.listdir(state) if name.endswith(".losses")] if os.path.isdir(state) else []

        try:
            a, b = start()
            check(a.ask(nbd.WRITE, 0, data=b"x" * 16 * MI)[0] == 0, "the page cache takes it")
            check(a.ask(nbd.FLUSH)[0] == EIO, "the kernel reports the error to this server")
            check(a.ask(nbd.TRIM, 0, 24 * MI)[0] == 0, "what was lost is given up, and there is room")
            until(files, 10, "the error is written down")
            a, b = start()
            for _ in range(2):
                check(a.ask(nbd.FLUSH)[0] == EIO, "the next server does not know that a's data are lost")
            check(b.ask(nbd.FLUSH)[0] == 0, "b has lost nothing")
            check("lost data    a: " in ctl(control, "status"), ctl(control, "status"))
            c, b = start("c", renamed="a")
            check(c.ask(nbd.FLUSH)[0] == EIO, "the tenant has another name, and lost data all the same")
            a, b = start("a", renamed="c")
            check("Input/output error" in ctl(control, "clear-error", "a"), "it says what was cleared")
            check(a.ask(nbd.FLUSH)[0] == 0, "the operator has cleared it")
            until(lambda: not files(), 10, "it is written down no longer")
            a, b = start()
            check(a.ask(nbd.FLUSH)[0] == 0, "it stays cleared")
        finally:
            servers[-1].kill()
            os.close(held)


def test_failing_is_remembered_under_another_name():
    """A tenant with a file of its own is renamed in the configuration while no server runs: its data are lost all the same."""
    with tempfile.TemporaryDirectory() as folder, overfull(32, 4) as disk:
        held = os.open(disk, os.O_RDONLY)
        state, servers = os.path.join(folder, "state"), []

        def start(name):
            if servers:
                servers[-1].kill()
                os.remove(servers[-1].socket)
            servers.append(Server(folder, "--device", "file,direct=off", "--tenant", f"{name}=32M,path={disk}"))
            return nbd.Client(servers[-1].socket, name)

        try:
            client = start("old")
            check(client.ask(nbd.WRITE, 0, data=b"x" * 16 * MI)[0] == 0, "the page cache takes it")
            check(client.ask(nbd.FLUSH)[0] == EIO, "the kernel reports the error to this server")
            check(client.ask(nbd.TRIM, 0, 24 * MI)[0] == 0, "there is room")
            until(lambda: os.path.isdir(state) and any(name.endswith(".losses") for name in os.listdir(state)), 10, "it is written down")
            check(start("new").ask(nbd.FLUSH)[0] == EIO, "the next server does not know that the data are lost")
        finally:
            servers[-1].kill()
            os.close(held)
