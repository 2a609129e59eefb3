"""Upgrades as clients see them; crates/cli/tests/operate/upgrade.rs has most of these tests."""

import json
import os
import tempfile

import nbd
from rig import MI, check, fairq, run, serve, until

PAGE = 4096


def test_late_writes_stay_first_over_an_upgrade():
    """Writes of a client that has disconnected wait for a cap, and the writes of the next client to the same bytes wait for them.
    The next program keeps this order, so that no old write overwrites data that the successor has flushed."""
    with tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        pool, control = os.path.join(folder, "pool"), os.path.join(folder, "c")
        with open(pool, "wb") as out:
            out.truncate(32 * MI)
        with serve("--device", f"file,path={pool}", "--tenant", "db=16M,max-iops=1", "--shards", "2",
                   "--control", control) as server:  # fmt: skip

            def ctl(*words):
                return json.loads(run(fairq(), "ctl", "--control", control, "--json", *words).stdout)

            old = nbd.Client(server.socket, "db")
            for page in range(8):
                old.send(nbd.WRITE, page * PAGE, data=b"o" * PAGE)
            until(lambda: ctl("tenants")[0]["in_flight"] >= 6, 60, "writes wait for the cap")
            old.close()
            until(lambda: ctl("tenants")[0]["ended"]["writes"] >= 6, 60, "the server knows that the client has ended")
            new = nbd.Client(server.socket, "db")
            for page in range(8):
                new.send(nbd.WRITE, page * PAGE, data=b"n" * PAGE)
            ctl("upgrade")
            ctl("caps", "db", "off")
            for _ in range(8):
                check(new.receive()[1] == 0, "a write of the successor")
            check(new.ask(nbd.FLUSH)[0] == 0, "its flush")
            until(lambda: ctl("tenants")[0]["in_flight"] == 0, 60, "nothing is under way")
            for page in range(8):
                check(new.ask(nbd.READ, page * PAGE, PAGE) == (0, b"n" * PAGE), f"an old write has landed on page {page}")
