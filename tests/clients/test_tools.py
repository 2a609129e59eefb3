"""libnbd's and qemu's tools: lists, copies, comparisons, maps and patterns must match the data that were written."""

import hashlib
import json
import os

from rig import MI, Failed, check, need, pattern, run, serve

TWO = ("--device", "ram,size=192M", "--tenant", "db=64M,weight=300", "--tenant", "batch=128M,weight=100")


def digest(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def test_nbdinfo():
    need("nbdinfo")
    with serve(*TWO) as server:
        listed = json.loads(run("nbdinfo", "--list", "--json", server.uri()).stdout)
        sizes = {e["export-name"]: e["export-size"] for e in listed["exports"]}
        check(sizes == {"db": 64 * MI, "batch": 128 * MI}, f"listed {sizes}")
        one = json.loads(run("nbdinfo", "--json", server.uri("db")).stdout)["exports"][0]
        for can in ("can_flush", "can_fua", "can_trim", "can_zero", "can_multi_conn", "can_cache", "can_df"):
            check(one.get(can) is True, f"{can} is {one.get(can)}")
        check(not one["is_read_only"], "read-only")
        check(one["block_size_minimum"] >= 1, f"block sizes: {one}")
        check("base:allocation" in one["contexts"], f"contexts {one['contexts']}")
        unknown = run("nbdinfo", server.uri("nobody"), ok=False)
        check(unknown.returncode != 0, "an export that does not exist opened")


def test_nbdcopy():
    need("nbdcopy")
    with serve(*TWO) as server:
        source = pattern(os.path.join(server.folder, "in"), 64 * MI)
        back = os.path.join(server.folder, "out")
        run("nbdcopy", "--flush", source, server.uri("db"))
        run("nbdcopy", server.uri("db"), back)
        check(digest(back) == digest(source), "what came back differs")
        # From export to export, over four connections each.
        run("nbdcopy", "-C", "4", "--flush", server.uri("db"), server.uri("batch"))
        run("nbdcopy", "-C", "4", server.uri("batch"), back)
        with open(back, "rb") as f:
            half, rest = f.read(64 * MI), f.read()
        check(hashlib.sha256(half).hexdigest() == digest(source), "what went from export to export differs")
        check(not any(rest), "the copy wrote beyond what it was given")


def test_qemu_img():
    need("qemu-img")
    with serve(*TWO) as server:
        source = pattern(os.path.join(server.folder, "in"), 64 * MI, seed=2)
        back = os.path.join(server.folder, "out.qcow2")
        run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", "-W", "-m", "8", source, server.uri("db"))
        run("qemu-img", "compare", "-f", "raw", "-F", "raw", source, server.uri("db"))
        run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", server.uri("db"), back)
        run("qemu-img", "compare", "-f", "raw", "-F", "qcow2", source, back)
        extents = json.loads(run("qemu-img", "map", "--output=json", "-f", "raw", server.uri("db")).stdout)
        check(sum(e["length"] for e in extents) == 64 * MI, "the map does not cover the export")
        for e in extents:
            if e["zero"]:
                with open(source, "rb") as f:
                    f.seek(e["start"])
                    check(not any(f.read(e["length"])), f"mapped as zero, but is data: {e}")


def test_sparse_map():
    """A file's holes are seen through the export, and trimming makes new ones."""
    need("qemu-img", "qemu-io", "nbdinfo")
    import tempfile

    with tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        device = os.path.join(folder, "pool.img")
        with serve("--device", f"file,path={device},size=64M,create", "--tenant", "a=32M", "--tenant", "b=32M") as server:
            run("qemu-io", "-f", "raw", server.uri("a"), "-c", "write -P 7 4M 2M", "-c", "flush")

            def data():
                rows = json.loads(run("nbdinfo", "--map", "--json", server.uri("a")).stdout)
                check(sum(r["length"] for r in rows) == 32 * MI, f"the map does not cover the export: {rows}")
                return sum(r["length"] for r in rows if r["type"] & 3 == 0)

            check(2 * MI <= data() <= 3 * MI, f"{data()} bytes of data where 2 MiB were written")
            run("qemu-io", "-f", "raw", "-d", "unmap", server.uri("a"), "-c", "discard 4M 1M", "-c", "flush")
            check(MI <= data() < 2 * MI, f"{data()} bytes of data after half of it was trimmed")
            run("qemu-io", "-f", "raw", server.uri("a"), "-c", "read -P 0 4M 1M", "-c", "read -P 7 5M 1M")
        size = os.stat(device)
        check(size.st_size == 64 * MI and size.st_blocks * 512 < 8 * MI, "the pool is not sparse")


def test_qemu_io():
    """Odd offsets, lengths below a sector, zeroes of both kinds, and every edge of the export."""
    need("qemu-io")
    steps = (
        "write -P 0x11 0 1M", "write -P 0x22 777 3333", "write -P 0x33 65535 2", "write -f -P 0x44 64511k 1M",
        "read -P 0x11 0 777", "read -P 0x22 777 3333", "read -P 0x11 4110 61425", "read -P 0x33 65535 2",
        "read -P 0x11 65537 100", "write -z 128k 64k", "read -P 0 128k 64k", "write -z -u 256k 1k",
        "read -P 0 256k 1k", "read -P 0x11 257k 1k", "read -P 0x11 131071 1", "read -P 0 131072 1",
        "discard 512k 64k", "read -P 0x11 576k 64k", "read -P 0x44 64511k 1M", "flush",
        "aio_write -P 0x55 2M 1M", "aio_write -P 0x66 3M 1M", "aio_write -P 0x77 4M 1M", "aio_flush",
        "read -P 0x55 2M 1M", "read -P 0x66 3M 1M", "read -P 0x77 4M 1M",
    )  # fmt: skip
    with serve(*TWO) as server:
        said = run("qemu-io", "-f", "raw", "-d", "unmap", server.uri("db"), *(x for s in steps for x in ("-c", s)))
        text = said.stdout + said.stderr
        if "verification failed" in text or "rror" in text:
            raise Failed(text.strip()[-600:])
        # The neighbour is unchanged.
        clean = run("qemu-io", "-f", "raw", server.uri("batch"), "-c", "read -P 0 0 128M")
        check("verification failed" not in clean.stdout, "a tenant's bytes appear in its neighbour")


def test_read_only():
    need("nbdinfo", "qemu-io")
    with serve("--device", "ram,size=64M", "--tenant", "a=32M", "--tenant", "ro=32M,read-only") as server:
        check(json.loads(run("nbdinfo", "--json", server.uri("ro")).stdout)["exports"][0]["is_read_only"], "writable")
        run("qemu-io", "-r", "-f", "raw", server.uri("ro"), "-c", "read -P 0 0 1M")
        check(run("qemu-io", "-f", "raw", server.uri("ro"), "-c", "write 0 4k", ok=False).returncode != 0, "it wrote")
