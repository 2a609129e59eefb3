"""The layout record of a block device: a server finds it after the device has grown, an operator can adopt it, and a
tenant cannot forge it."""

import contextlib
import hashlib
import json
import os
import struct
import tempfile

import nbd
import rig
from rig import MI, Server, Skip, check, run, until


@contextlib.contextmanager
def machine(size):
    """A folder, a loop device of this many bytes, and a function that gives it another size. All programs that are run
    meanwhile use the folder's state directory."""
    with tempfile.TemporaryDirectory(prefix="fairq-device-") as folder:
        image = os.path.join(folder, "image")
        with open(image, "wb") as f:
            f.truncate(size)
        made = run("losetup", "--find", "--show", image, ok=False)
        if made.returncode:
            raise Skip(f"no loop device: {made.stderr.strip()}")
        disk = made.stdout.strip()

        def resize(size):
            os.truncate(image, size)
            run("losetup", "--set-capacity", disk)

        before = os.environ.get("STATE_DIRECTORY")
        os.environ["STATE_DIRECTORY"] = os.path.join(folder, "state")
        try:
            yield folder, disk, resize
        finally:
            os.environ.pop("STATE_DIRECTORY")
            if before is not None:
                os.environ["STATE_DIRECTORY"] = before
            run("losetup", "-d", disk)


def opened(server, name):
    """A client of the tenant; None while its range is being zeroed."""
    with contextlib.suppress(nbd.Refused):
        return nbd.Client(server.socket, name)


@contextlib.contextmanager
def serving(folder, disk, **tenants):
    flags = [flag for name, mib in tenants.items() for flag in ("--tenant", f"{name}={mib}M")]
    server = Server(folder, "--device", f"file,path={disk}", *flags, env=dict(os.environ))
    try:
        yield {name: until(lambda name=name: opened(server, name), 30, f"{name} can be opened") for name in tenants}
        check(server.terminate() == 0, server.said()[-500:])
    finally:
        server.kill()


def refused(folder, disk, **tenants):
    """The message of a start that is refused."""
    try:
        with serving(folder, disk, **tenants):
            pass
    except rig.Failed as error:
        check("ended with 2" in str(error), str(error))
        return str(error)
    raise rig.Failed("the start is not refused")


def fill(clients):
    for name, client in clients.items():
        check(client.ask(nbd.WRITE, 0, data=name.encode() * 4096, flags=nbd.FUA)[0] == 0, "it works")


def have_their_own(clients):
    for name, client in clients.items():
        errno, data = client.ask(nbd.READ, 0, 4096)
        check(errno == 0 and data == name.encode() * 4096, f"{name} reads {data[:8]}")


def record(at, **offsets):
    """The bytes of a valid record for a device whose last MiB begins at `at`; tenants have a MiB each."""
    ranges = [[name, mib * MI, MI, True] for name, mib in sorted(offsets.items(), key=lambda item: item[1])]
    body = json.dumps({"id": "0" * 32, "size": at, "fresh": at, "ranges": ranges}).encode()
    head = struct.pack("<8sIIQ", b"fairqlay", 1, len(body), 1000)
    copy = head + hashlib.sha256(head + body).digest() + bytes(8) + body
    return 2 * copy.ljust(512 << 10, b"\0")


def test_a_device_that_has_grown():
    """The machine that used the device before finds the record at any old end of the device. On another machine the
    operator has to adopt it."""
    with machine(33 * MI + 12288) as (folder, disk, resize):
        with serving(folder, disk, a=8, b=8) as clients:
            fill(clients)
        resize(64 * MI)
        with serving(folder, disk, a=8, b=8, c=40) as clients:
            check(clients["c"].ask(nbd.READ, 0, 4096)[1] == bytes(4096), "the new space reads as zeroes")
            del clients["c"]
            have_their_own(clients)
        resize(96 * MI)
        os.environ["STATE_DIRECTORY"] = os.path.join(folder, "other")
        said = refused(folder, disk, a=8, b=8)
        check("has a layout record at" in said and f"fairq layout adopt {disk}" in said, said)
        run(rig.fairq(), "layout", "adopt", disk)
        with serving(folder, disk, a=8, b=8) as clients:
            have_their_own(clients)


def test_a_record_that_a_tenant_has_written():
    """A device of version 0.1.0 on which a tenant has written the bytes of a record: the server does not believe that
    record."""
    with machine(32 * MI) as (folder, disk, _):
        with open(disk, "r+b") as f:
            f.write(b"a" * 4096)
            f.seek(16 * MI)
            f.write(record(16 * MI, b=0, a=1))
        said = refused(folder, disk, a=8, b=8)
        check("these bytes are a tenant's" in said, said)
        with open(disk, "rb") as f:
            f.seek(31 * MI)
            check(f.read(MI) == bytes(MI), "nothing was written")


def test_a_device_whose_last_bytes_are_a_tenants():
    """The record is in the state directory, and a tenant may write a record at the device's end. When the device grows, the
    command in the refusal's message mends it."""
    with machine(16 * MI) as (folder, disk, resize):
        config = os.path.join(folder, "fairq.toml")
        with open(config, "w", encoding="utf-8") as f:
            f.write(f'device = "file,path={disk}"\n')
            f.write("".join(f'[[tenant]]\nname = "{name}"\nsize = "8M"\n' for name in "ab"))
        run(rig.fairq(), "layout", "adopt", disk, "--config", config)
        with serving(folder, disk, a=8, b=8) as clients:
            fill(clients)
            check(clients["b"].ask(nbd.WRITE, 7 * MI, data=record(15 * MI, b=0, a=1), flags=nbd.FUA)[0] == 0, "it works")
        with serving(folder, disk, a=8, b=8) as clients:
            have_their_own(clients)
        resize(24 * MI)
        said = refused(folder, disk, a=8, b=8)
        check("that of a device of 16M" in said and f"fairq layout adopt {disk}" in said, said)
        run(rig.fairq(), "layout", "adopt", disk)
        with serving(folder, disk, a=8, b=8, c=8) as clients:
            del clients["c"]
            have_their_own(clients)
