"""The policy changes under load: written data is verified, connections stay, and shares follow the policy in force."""

import json
import os
import time

import rig
from rig import MI, PACED, check, finish, fio_args, need, start

# With a device that has queue classes, so that every policy may come.
CLASSES = "nvme-soft,backing=ram,size=96M"
POLICIES = ("mqfq", "d2fq", "kyber-fair:period=20ms", "bfq", "nass+bfq", "none", "cfq:slice=5ms", "nass+mqfq", "kyber",
            "flashfq", "mqfq-serial:D=8", "sfqd", "d2fq:hl=static-4")  # fmt: skip


def ctl(control, *words):
    return rig.run(rig.fairq(), "ctl", "--control", control, *words).stdout


def moved(control):
    tenants = json.loads(ctl(control, "--json", "tenants"))
    return [t["read_bytes"] + t["written_bytes"] for t in tenants]


def test_switch_verified():
    """Three clients write, flush and read back against checksums while the policy changes all the time."""
    need("fio")
    with rig.tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        control = os.path.join(folder, "control")
        tenants = [word for i in range(3) for word in ("--tenant", f"t{i}=32M,weight={100 * (i + 1)}")]
        with rig.serve("--device", CLASSES, "--policy", "none", "--control", control, *tenants) as server:
            job = {"rw": "randwrite", "iodepth": 32, "size": "32M", "loops": 12, "verify": "crc32c", "verify_fatal": 1,
                   "do_verify": 1, "verify_state_save": 0, "fsync": 200}  # fmt: skip
            blocks = ("4k", "16k", "512k")
            children = [start([a for a in fio_args(server.uri(f"t{i}"), bs=bs, **job) if a != "--norandommap=1"])
                        for i, bs in enumerate(blocks)]  # fmt: skip
            changes = 0
            while all(child.poll() is None for child in children) or changes < len(POLICIES):
                said = ctl(control, "policy", POLICIES[changes % len(POLICIES)])
                check(" -> " in said, said)
                changes += 1
                if changes >= 10 * len(POLICIES):
                    break
            for report in finish(children):
                check(report["read"]["total_ios"] > 0, "nothing was verified")
            status = json.loads(ctl(control, "--json", "status"))
            check(status["policy_state"]["slots_in_use"] in (None, 0), f"slots are lost: {status['policy_state']}")
    return f"{changes} changes"


def test_switch_shares():
    """none gives 1:1; mqfq from then on 1:3, by the same connections; and none 1:1 again."""
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
