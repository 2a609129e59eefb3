"""fio's nbd engine: data verified by its checksums, alone and several at once; and the shares of its clients (`law`)."""

import json
import os
import tempfile

import law
from rig import MI, PACED, Failed, check, fairq, finish, fio_args, need, run, serve, start, until

FOUR = tuple(x for i in range(4) for x in ("--tenant", f"t{i}=48M,weight={100 * (i + 1)}"))


def verified(uri, seed, size="32M", **options):
    """A job that writes every block once, by default in random order, and reads it back against its checksum."""
    options = {"rw": "randwrite", **options}
    return fio_args(uri, size=size, iodepth=32, verify="crc32c", verify_fatal=1, do_verify=1, verify_state_save=0,
                    randrepeat=1, randseed=seed, **options)  # fmt: skip


def test_fio_verify():
    need("fio")
    with serve("--device", "ram,size=192M", *FOUR) as server:
        for seed, bs in enumerate(("4k", "64k", "1m", "512-9k")):
            size = {"bsrange": bs, "bs_unaligned": 1} if "-" in bs else {"bs": bs}
            [job] = finish([start([a for a in verified(server.uri("t0"), seed + 1, **size) if "norandommap" not in a])])
            check(job["write"]["total_ios"] and job["read"]["total_ios"], f"{bs}: nothing was verified")


def test_tenants_with_files_of_their_own():
    """On the software controller each file is a namespace: tenants cannot write to each other's."""
    need("fio")
    with tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        shared, own = os.path.join(folder, "shared.img"), os.path.join(folder, "own.img")
        tenants = ("--tenant", "a=32M,weight=300", "--tenant", f"b=32M,path={own},create", "--tenant", "c=16M")
        with serve("--device", f"nvme-soft,backing={shared},size=48M,create", *tenants, "--policy", "d2fq") as server:
            sizes = {"a": "32M", "b": "32M", "c": "16M"}
            argvs = (verified(server.uri(name), 7 + i, size=size, bs="8k") for i, (name, size) in enumerate(sizes.items()))
            for job in finish([start([a for a in argv if "norandommap" not in a]) for argv in argvs]):
                check(job["read"]["total_ios"] > 0, "nothing was verified")
        for path, size in ((shared, 48 * MI), (own, 32 * MI)):
            with open(path, "rb") as f:
                data = f.read()
            check(len(data) == size, f"{path} is {len(data)} bytes long, not {size}")
            empty = sum(not any(data[at : at + 4096]) for at in range(0, size, 4096))
            check(empty == 0, f"{empty} blocks of {path} have not been written")


def test_fio_verify_several():
    """Four tenants at once on one paced device, each its own pattern, with flushes in between."""
    need("fio")
    paced = "paced,size=192M,bandwidth=100M,iops=20000,latency=300us"
    with serve("--device", paced, *FOUR, "--policy", "mqfq") as server:
        argvs = (verified(server.uri(f"t{i}"), 40 + i, bs=("4k", "16k", "64k", "8k")[i], fsync=64) for i in range(4))
        for job in finish([start([a for a in argv if "norandommap" not in a]) for argv in argvs]):
            check(job["read"]["total_ios"] > 0, "nothing was verified")


def test_shares():
    """Two tenants are served by weight: 64 KiB requests beside 4 KiB ones, under two policies and after weights change."""
    need("fio")
    with tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        control = os.path.join(folder, "control")

        def ctl(*words):
            return run(fairq(), "ctl", "--control", control, *words).stdout

        def reads():
            return [tenant["reads"] for tenant in json.loads(ctl("--json", "tenants"))]

        def move_on():
            """Waits until each client has completed more requests than it keeps in flight."""
            before = reads()
            until(lambda: all(now > then + 64 for now, then in zip(reads(), before)), 60, "both are at work")

        tenants = ("--tenant", "a=256M,weight=100", "--tenant", "b=256M,weight=300")
        with serve("--device", PACED, "--shards", "1", "--policy", "none", *tenants, "--control", control) as server:
            job = {"rw": "randread", "size": "256M", "time_based": 1, "runtime": 600}
            clients = [start(fio_args(server.uri("a"), bs="64k", iodepth=32, **job)),
                       start(fio_args(server.uri("b"), bs="4k", iodepth=64, **job))]  # fmt: skip
            try:
                move_on()
                ctl("policy", law.POLICY)
                rows = law.shares(control, {"a": 100, "b": 300})
                # Equal weights would have failed the check.
                try:
                    law.holds(rows, {"a": 100, "b": 100})
                except Failed:
                    pass
                else:
                    check(False, "the recording shows equal shares, too")
                ctl("weight", "a", "600")
                # Staged requests keep their start tags.
                move_on()
                law.shares(control, {"a": 600, "b": 300})
                ctl("policy", f"sfqd:slots={law.DEPTH},cost=bytes")
                law.shares(control, {"a": 600, "b": 300})
            finally:
                for client in clients:
                    client.kill()
                    client.communicate()


def joined(control):
    """The number of requests issued, and of those that were joined to another one's command."""
    status = json.loads(run(fairq(), "ctl", "--control", control, "--json", "status").stdout)
    return sum(sum(shard["issued"].values()) for shard in status["shards"]), sum(shard["joined"] for shard in status["shards"])


def test_merging():
    """Streams in 4 KiB requests are merged, behind one lock and in ports without a lock, on a file and on the software
    controller: every byte is right, and there are fewer commands."""
    need("fio")
    notes = []
    with tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        control = os.path.join(folder, "control")
        few = ("bfq:slots=4", "kyber:read-depth=4,write-depth=4", "kyber-fair:busy=4,tokens=64k")
        for number, (kind, policy) in enumerate((kind, policy) for kind in ("file,path=", "nvme-soft,backing=") for policy in few):
            for merge in ("off", "on") if policy == few[0] else ("on",):
                device = f"{kind}{os.path.join(folder, f'{merge}{number}')},size=64M,create"
                two = ("--tenant", "a=16M", "--tenant", "b=16M", "--control", control)
                with serve("--device", device, *two, "--policy", f"{policy},merge={merge}") as server:
                    argvs = [verified(server.uri(name), 90, size="4M", rw="write", bs="4k", fsync=128) for name in "ab"]
                    for job in finish([start([a for a in argv if "norandommap" not in a]) for argv in argvs]):
                        blocks = job["read"]["total_ios"]
                        check(blocks == 1024, f"{device}: {blocks} blocks were verified, of 1024")
                    requests, part = joined(control)
                    check((part > 0) == (merge == "on"), f"{policy}, {device}: {part} of {requests} requests were joined")
                    if merge == "on":
                        notes.append(f"{policy.split(':')[0]}, {kind[:4]}: {requests} requests in {requests - part} commands")
                os.remove(os.path.join(folder, f"{merge}{number}"))
    return "; ".join(notes)
