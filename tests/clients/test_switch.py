"""The policy changes under load: written data is verified, and connections stay."""

import json
import os

import rig
from rig import check, finish, fio_args, need, start

# With a device that has queue classes, so that every policy is possible.
CLASSES = "nvme-soft,backing=ram,size=96M"
POLICIES = ("mqfq", "d2fq", "kyber-fair:period=20ms", "bfq", "nass+bfq", "none", "cfq:slice=5ms", "nass+mqfq", "kyber",
            "flashfq", "mqfq-serial:D=8", "sfqd", "d2fq:hl=static-4")  # fmt: skip


def ctl(control, *words):
    return rig.run(rig.fairq(), "ctl", "--control", control, *words).stdout


def test_switch_verified():
    """Three clients write, flush and read back against checksums while the policy changes all the time."""
    need("fio")
    with rig.tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        control = os.path.join(folder, "control")
        tenants = [word for i in range(3) for word in ("--tenant", f"t{i}=32M,weight={100 * (i + 1)}")]
        with rig.serve("--device", CLASSES, "--policy", "none", "--control", control, *tenants) as server:
            job = {"rw": "randwrite", "iodepth": 32, "size": "32M", "loops": 2, "verify": "crc32c", "verify_fatal": 1,
                   "do_verify": 1, "verify_state_save": 0, "fsync": 200}  # fmt: skip
            blocks = ("4k", "16k", "512k")
            argvs = [[a for a in fio_args(server.uri(f"t{i}"), bs=bs, **job) if a != "--norandommap=1"] for i, bs in enumerate(blocks)]
            changes = 0
            # Each policy is used while clients are active.
            while changes < len(POLICIES):
                children = [start(argv) for argv in argvs]
                while any(child.poll() is None for child in children):
                    said = ctl(control, "policy", POLICIES[changes % len(POLICIES)])
                    check(" -> " in said, said)
                    changes += 1
                for report in finish(children):
                    check(report["read"]["total_ios"] > 0, "nothing was verified")
            status = json.loads(ctl(control, "--json", "status"))
            check(status["policy_state"]["slots_in_use"] in (None, 0), f"slots are lost: {status['policy_state']}")
    return f"{changes} changes"
