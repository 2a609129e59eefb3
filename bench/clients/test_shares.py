"""The shares and latencies that real clients get, in wall time. The tests need a machine without other load."""

import contextlib
import json
import os
import tempfile
import time

import rig
from common import recorded
from rig import MI, PACED, ROOT, check, finish, fio, fio_args, need, serve, start, together


def share_of(policy, device=PACED, bs="64k", depth=32, deep=64, seconds=9):
    """The bytes of B divided by those of A. A has weight 1 and the given load; B has weight 3 and 4 KiB requests at
    depth `deep`."""
    with serve("--device", device, "--tenant", "a=256M,weight=100", "--tenant", "b=256M,weight=300",
               "--policy", policy) as server:  # fmt: skip
        a, b = together(
            server.folder,
            {"uri": server.uri("a"), "rw": "randread", "bs": bs, "iodepth": depth, "size": "256M"},
            {"uri": server.uri("b"), "rw": "randread", "bs": "4k", "iodepth": deep, "size": "256M"},
            seconds=seconds,
        )
        check(a > 0 and b > 0, f"a tenant got nothing: {a} and {b} bytes/s")
        return b / a, a + b


def entitled(bars, name, within, policy, *load, **more):
    """The shares are 1:3 in at least one of three runs. While a client has no CPU its queue runs empty, and the other client
    gets its service, so a single run may differ; a real defect of the shares appears in all runs."""
    tried = []
    for _ in range(3):
        fair, total = share_of(policy, *load, **more)
        tried.append(f"1:{fair:.3f}")
        if abs(fair / 3 - 1) <= within:
            break
    bars.add(f"clients/{name.replace(', ', '-').replace(' ', '-')}", f"two fio clients 1:3, `{policy}`, {name.removeprefix(policy).lstrip(', ')}: ratio", fair,
             3 * (1 - within), 3 * (1 + within), peer=f"{total / 1e6:.1f} MB/s")
    check(abs(fair / 3 - 1) <= within, f"{policy}, {load} {more}: bytes {', '.join(tried)}, entitled 1:3 within {within:.0%}")
    return f"{' then '.join(tried)} at {total / 1e6:.1f} MB/s"


def test_shares():
    need("fio")
    with recorded("bench/clients/run shares") as bars:
        fair = entitled(bars, "64 KiB beside 4 KiB", 0.03, "mqfq")
    unfair, rest = share_of("none")
    check(abs(unfair / 3 - 1) > 0.03, f"none: bytes 1:{unfair:.3f} too, so the test shows nothing")
    return f"mqfq {fair}, none 1:{unfair:.3f} at {rest / 1e6:.1f} MB/s"


# A controller that takes the same time for each command, long enough for two clients to keep its
# queues backlogged even on a busy machine: classes have no effect on empty queues.
SLOW = """
name = "slow"
model = "10,000 commands a second"
host = { interface = "nvme", queues = 32, queue-entries = 1024, window = 8, wrr = "yes", capacity-gb = 100 }
controller = { read-us = 100, write-us = 100, read-fixed-us = 100, write-fixed-us = 100, power-loss-protection = true }
link = { read-mb-s = 3200, write-mb-s = 3200 }
media = { channels = 8, dies-per-channel = 16, page-kib = 4, read-us = 3, program-us = 100, program-kib = 4, channel-mb-s = 800, suspend-us = 2 }
buffer = { size-kib = 8192 }
garbage = { over-provisioning = 0.078, erase-us = 1000, programs-per-erase = 256 }
"""


def test_shares_by_the_device():
    """d2fq dispatches requests when they are submitted, and the queue classes of the software controller divide the device: a
    timed device, and a file."""
    need("fio")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fairq-"))
        profile, image = os.path.join(folder, "slow.toml"), os.path.join(folder, "disk.img")
        with open(profile, "w", encoding="utf-8") as out:
            out.write(SLOW)
        timed = f"nvme-soft,backing=ram,size=512M,window=8,profile={profile}"
        bars = stack.enter_context(recorded("bench/clients/run shares_by_the_device"))
        said = [entitled(bars, f"classes, {bs} beside 4k", 0.03, "d2fq", timed, bs, 64, seconds=12) for bs in ("4k", "8k")]
        unfair, _ = share_of("none", timed, "4k", 64, seconds=4)
        check(abs(unfair / 3 - 1) > 0.3, f"none: bytes 1:{unfair:.3f} too, so the test shows nothing")
        # Fill the file: holes would be read without the disk.
        with open(image, "wb") as out:
            for _ in range(512):
                out.write(os.urandom(MI))
        fair = entitled(bars, "classes over a file", 0.03, "d2fq", f"nvme-soft,backing={image},direct=on,window=2", "4k", 64, seconds=12)
        return f"{' and '.join(said)}, over a file {fair}; none 1:{unfair:.3f}"


def test_shares_by_tokens_and_within_limits():
    """kyber-fair distributes bytes in periods; nass+bfq limits the large requests and must not reduce their bytes; nass+cfq shares
    time, which has the same effect as sharing bytes if requests are alike. B's queue is deeper than in the test of mqfq, because a
    queue that runs empty for a moment loses the rest of its period."""
    need("fio")
    said = []
    # Shares by slices of time are the least exact, because a stall of the machine may take a tenth of a slice.
    with recorded("bench/clients/run shares_by_tokens_and_within_limits") as bars:
        for policy, bs, within in (("kyber-fair", "64k", 0.05), ("nass+bfq", "64k", 0.05), ("nass+cfq", "4k", 0.1)):
            name = f"{policy}, {bs} beside 4k"
            said.append(f"{name}, {entitled(bars, name, within, policy, bs=bs, deep=256)}")
    return "; ".join(said)


def test_shares_of_a_shallow_drive():
    """Two clients of 64 requests each on a drive that takes 32. They send and receive in batches, so that at times one of them has
    few or no staged requests. kyber-fair must not distribute tokens at each of these moments, NASS must not give one client's place
    to the other for ever, and NASS around CFQ must use the drive. The drive reads at a quarter of the model's speed, so that
    clients on a slow machine can keep it busy."""
    need("fio")
    with open(os.path.join(ROOT, "crates/device/profiles/intel-530.toml"), encoding="utf-8") as text:
        profile = text.read()
    slower = profile.replace("read-us = 160", "read-us = 640")
    check(slower != profile, "the profile reads in 160 us")
    with tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        path = os.path.join(folder, "drive.toml")
        with open(path, "w", encoding="utf-8") as out:
            out.write(slower)
        drive = f"nvme-soft,backing=ram,size=512M,profile={path}"
        _, most = share_of("none", drive, "4k", 64, seconds=4)
        said = []
        with recorded("bench/clients/run shares_of_a_shallow_drive") as bars:
            for policy in ("kyber-fair", "nass+bfq", "nass+cfq"):
                said.append(f"{policy} {entitled(bars, f'{policy}, shallow drive', 0.08, policy, drive, '4k', 64, seconds=6)}")
                kept = max(share_of(policy, drive, "4k", 64, seconds=4)[1] for _ in range(2)) / most
                bars.add(f"clients/{policy}-shallow-drive-kept", f"two fio clients 1:3, `{policy}`, shallow drive: of `none`", kept, 0.85)
                check(kept > 0.85, f"{policy} keeps {kept:.2f} of what the drive does")
                said.append(f"{kept:.2f} of none")
        return ", ".join(said)


def p99_ms(job):
    return job["read"]["clat_ns"]["percentile"]["99.000000"] / 1e6


def test_latency():
    """A request of a tenant at depth 1 beside a flood at depth 256 takes at most twice as long as alone, plus one
    service time of the device.

    The device is slow, so a client's waits for a CPU on a busy machine are small beside the latencies."""
    need("fio")
    service_ms = 10
    device = f"paced,size=512M,iops=400,latency={service_ms}ms,parallelism=4"

    def beside_flood(policy):
        with serve("--device", device, "--tenant", "calm=256M", "--tenant", "flood=256M", "--policy", policy) as server:
            calm = {"rw": "randread", "bs": "4k", "iodepth": 1, "size": "256M", "time_based": 1, "runtime": 5}
            alone = p99_ms(fio(server.uri("calm"), **calm))
            flood = start(fio_args(server.uri("flood"), rw="randread", bs="4k", iodepth=256, size="256M", time_based=1,
                                   runtime=14))  # fmt: skip
            # At 400 requests a second the search for D takes some seconds.
            beside = p99_ms(fio(server.uri("calm"), ramp_time=6, **calm))
            check(flood.poll() is None, "the flood ended before the measurement did")
            [flooded] = finish([flood])
            check(flooded["read"]["iops"] > 250, f"the flood was none: {flooded['read']['iops']:.0f} IOPS of 400")
            return alone, beside, 2 * alone + service_ms

    # A request of a newly active tenant may wait until other tenants have used their lead of T: here one request, at
    # 400 requests a second.
    alone, beside, bound = beside_flood("mqfq:threshold=4k")
    said = f"p99 {beside:.1f} ms beside the flood, {alone:.1f} ms alone"
    check(beside <= bound, f"mqfq: {said}; the bound is {bound:.1f} ms")
    _, unfair, bound = beside_flood("none")
    check(unfair > bound, f"none: {unfair:.1f} ms beside the flood too, so the test shows nothing")
    return f"{said}; none {unfair:.1f} ms beside it"


def ctl(control, *words):
    return rig.run(rig.fairq(), "ctl", "--control", control, *words).stdout


def moved(control):
    tenants = json.loads(ctl(control, "--json", "tenants"))
    return [t["read_bytes"] + t["written_bytes"] for t in tenants]


def test_switch_shares():
    """none gives 1:1; then mqfq gives 1:3 on the same connections; then none gives 1:1 again."""
    need("fio")
    with rig.tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        control = os.path.join(folder, "control")
        tenants = ("--tenant", "a=256M,weight=100", "--tenant", "b=256M,weight=300")
        with rig.serve("--device", PACED, *tenants, "--policy", "none", "--control", control) as server:
            job = {"rw": "randread", "bs": "4k", "iodepth": 64, "size": "256M", "time_based": 1, "runtime": 60}
            children = [start(fio_args(server.uri(name), **job)) for name in "ab"]
            rig.until(lambda: min(moved(control)) > MI, 20, "both are at work")

            def ratio(policy):
                if policy:
                    ctl(control, "policy", policy)
                time.sleep(0.5)
                before = moved(control)
                time.sleep(4)
                a, b = (after - earlier for after, earlier in zip(moved(control), before))
                check(a > 0, "a tenant got nothing")
                return b / a

            try:
                first, fair, again = ratio(None), ratio("mqfq"), ratio("none")
            finally:
                for child in children:
                    child.terminate()
                    child.communicate()
            said = f"none 1:{first:.2f}, mqfq 1:{fair:.2f}, none 1:{again:.2f}"
            check(abs(fair / 3 - 1) <= 0.05, f"{said}; mqfq is to give 1:3 within 5 %")
            check(max(first, again) < 1.5, f"{said}; none is to give 1:1")
            return said
