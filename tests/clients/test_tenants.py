"""Tenants that are added while the server runs: no tenant reads another tenant's old data, and tenants' own files are
opened while the server runs."""

import json
import os

import nbd
import rig
from rig import MI, check, need


def ctl(control, *words, ok=True):
    return rig.run(rig.fairq(), "ctl", "--control", control, *words, ok=ok)


def qemu_io(uri, *commands):
    words = [word for command in commands for word in ("-c", command)]
    done = rig.run("qemu-io", "-f", "raw", *words, uri, ok=False)
    said = done.stdout + done.stderr
    check(done.returncode == 0 and "verification failed" not in said, f"{commands}: {said.strip()[-300:]}")


def left_by_others(folder, device):
    """Writes as a tenant while that tenant is removed, and reads as the next tenant of the same range."""
    control = os.path.join(folder, "control")
    with rig.serve("--device", device, "--tenant", "first=8M", "--tenant", "old=16M", "--control", control) as server:
        for round_, name in enumerate(("old", "old2", "old3")):
            qemu_io(server.uri(name), f"write -P {0x50 + round_} 0 16M", "flush")
            # The next tenant must not read writes either that are under way when the tenant is
            # removed.
            job = rig.fio_args(server.uri(name), rw="write", bs="1m", iodepth=16, size="16M", time_based=1, runtime=600)
            late = rig.start(job)
            rig.until(lambda: json.loads(ctl(control, "--json", "tenants").stdout)[-1]["writes"] > 32, 10, "it writes")
            ctl(control, "remove", name)
            next_ = f"old{round_ + 2}"
            ctl(control, "add", f"{next_}=16M,offset=8M")
            late.communicate(timeout=rig.PATIENCE)
            qemu_io(server.uri(next_), "read -P 0 0 16M")
        # A tenant that is added again keeps its own data.
        qemu_io(server.uri("old4"), "write -P 0x77 0 1M", "flush")
        ctl(control, "remove", "old4")
        ctl(control, "add", "mine=16M,offset=8M,keep-data")
        qemu_io(server.uri("mine"), "read -P 0x77 0 1M")


def test_tenants_do_not_read_what_others_left():
    need("qemu-io", "fio")
    with rig.tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        image, behind = os.path.join(folder, "image"), os.path.join(folder, "behind")
        for device in ("ram,size=24M", f"file,path={image},size=24M,create", "nvme-soft,backing=ram,size=24M",
                       f"nvme-soft,backing={behind},size=24M,create", "paced,size=24M,bandwidth=400M"):  # fmt: skip
            left_by_others(folder, device)


def test_late_writes():
    """A client disconnects while its writes wait for a cap; the next one's flushed writes to the same blocks stay."""
    with rig.tempfile.TemporaryDirectory() as folder, rig.serve(
        "--device", "paced,size=64M,iops=100k", "--tenant", "a=64M,max-iops=100,burst=1", "--shards", "2", "--control", f"{folder}/c"
    ) as server:  # fmt: skip
        old = nbd.Client(server.socket, "a")
        for block in range(60):
            old.send(nbd.WRITE, block * 4096, data=b"A" * 4096)
        old.send(nbd.DISC)
        old.s.close()
        new = nbd.Client(server.socket, "a")
        for block in range(59, 49, -1):
            check(new.ask(nbd.WRITE, block * 4096, data=b"B" * 4096)[0] == 0, "written")
        check(new.ask(nbd.FLUSH)[0] == 0, "flushed")
        # Reads of the other blocks wait for the old client's writes, so all of these have been
        # carried out.
        check(new.ask(nbd.READ, 0, 50 * 4096)[1] == b"A" * 50 * 4096, "requests before a disconnect are done")
        check(new.ask(nbd.READ, 50 * 4096, 10 * 4096)[1] == b"B" * 10 * 4096, "no old write lands on flushed data")
        ended = rig.json.loads(ctl(f"{folder}/c", "tenants", "--json").stdout)[0]["ended"]
        check(ended["writes"] == 0 and ended["waited"] > 0, f"nothing is left, and requests have waited: {ended}")


def test_good_bye_behind_more_requests_than_have_room():
    """A client says good-bye and closes its socket while the server has no room for its next request. The first reply fails,
    before the good-bye is read, and the requests are carried out all the same."""
    requests = 540
    with rig.serve("--device", "paced,size=64M,iops=100k", "--tenant", "a=64M,max-iops=1000,burst=1", "--shards", "2") as server:
        old = nbd.Client(server.socket, "a")
        for block in range(requests):
            old.send(nbd.WRITE, block * 4096, data=b"A" * 4096)
        old.send(nbd.DISC)
        old.s.close()
        new = nbd.Client(server.socket, "a")
        check(new.ask(nbd.READ, 0, requests * 4096)[1] == b"A" * requests * 4096, "requests before a disconnect are done")


def test_tenants_bring_files_of_their_own():
    need("qemu-io", "nbdinfo")
    with rig.tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        control = os.path.join(folder, "control")
        for kind in ("file,path={}", "nvme-soft,backing={}"):
            path = lambda name: os.path.join(folder, f"{kind[:4]}-{name}")
            device = kind.format(path("shared")) + ",size=32M,create"
            with rig.serve("--device", device, "--tenant", "a=16M", "--control", control, "--policy", "mqfq") as server:
                for name, size in (("b", 24), ("c", 8)):
                    ctl(control, "add", f"{name}={size}M,path={path(name)},create,weight=200")
                qemu_io(server.uri("a"), "write -P 1 0 16M")
                qemu_io(server.uri("b"), "write -P 2 0 24M", "flush")
                qemu_io(server.uri("c"), "write -P 3 0 8M", "flush")
                for name, byte, size in (("a", 1, 16), ("b", 2, 24), ("c", 3, 8)):
                    qemu_io(server.uri(name), f"read -P {byte} 0 {size}M")
                # A tenant that is added again finds its file unchanged; no other tenant gets it.
                taken = ctl(control, "add", f"d=24M,path={path('b')}", ok=False)
                check(taken.returncode == 1 and "is the file of tenant b" in taken.stderr, taken.stderr)
                ctl(control, "remove", "b")
                ctl(control, "add", f"b2,path={path('b')}")
                qemu_io(server.uri("b2"), "read -P 2 0 24M")
                absent = ctl(control, "add", f"e,path={path('nothing')}", ok=False)
                check(absent.returncode == 1 and "add create" in absent.stderr, absent.stderr)
                # The dumped configuration can be served again, with everything in its place.
                dump = os.path.join(folder, "dump.toml")
                with open(dump, "w", encoding="utf-8") as out:
                    out.write("\n".join(line for line in ctl(control, "config", "dump").stdout.splitlines()
                                        if not line.startswith("listen")))  # fmt: skip
            with open(path("b"), "rb") as f:
                check(f.read() == b"\2" * (24 * MI), "the file holds what its tenant wrote")
            with rig.serve("--config", dump) as server:
                for name, byte, size in (("a", 1, 16), ("b2", 2, 24), ("c", 3, 8)):
                    qemu_io(server.uri(name), f"read -P {byte} 0 {size}M")
    none = "ram has no files"
    with rig.tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        control = os.path.join(folder, "control")
        with rig.serve("--device", "ram,size=32M", "--tenant", "a=16M", "--control", control):
            refused = ctl(control, "add", f"b=8M,path={folder}/x,create", ok=False)
            check(refused.returncode == 1 and "has no files" in refused.stderr, f"{none}: {refused.stderr}")
