"""Storage that fails: a block device that takes more than it has room for, which shows when the kernel writes it back."""

import contextlib
import os
import tempfile

import nbd
from rig import MI, Skip, check, run, serve

EIO = 5


@contextlib.contextmanager
def overfull(size_mi, room_mi):
    """A block device of `size_mi` MiB of which only `room_mi` can be kept: writes are taken by the page cache, and lost."""
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
    """A TRIM with FUA is answered when it is durable, and so it hears that the device is not."""
    for device in ("file,path={},direct=off", "nvme-soft,backing={},direct=off"):
        with overfull(32, 4) as disk, serve("--device", device.format(disk), "--tenant", "a=32M") as server:
            client = nbd.Client(server.socket, "a")
            check(client.ask(nbd.WRITE, 0, data=b"x" * 16 * MI)[0] == 0, "the page cache takes it")
            check(client.ask(nbd.TRIM, 24 * MI, MI)[0] == 0, "a TRIM without FUA promises nothing")
            check(client.ask(nbd.TRIM, 24 * MI, MI, flags=nbd.FUA)[0] == EIO, f"{device}: a durable TRIM heard of no error")
