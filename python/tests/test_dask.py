"""A sweep on a cluster, one of whose workers is killed during the sweep."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

import fairq
from test_fairq import SCENARIO, bytes_of

distributed = pytest.importorskip("distributed")


def test_a_worker_that_is_killed_changes_nothing() -> None:
    scenario = SCENARIO | {"duration": "300ms"}
    over = {"tenant.db.weight": [100, 200, 300, 400], "tenant.*.depth": [16, 64]}
    here = fairq.sweep(scenario, over, ["mqfq"], seeds=3)
    with distributed.LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=None) as cluster:
        with distributed.Client(cluster) as client:
            pids = client.run(os.getpid)
            killed = threading.Event()

            def kill() -> None:
                # Waits until a worker has a result: at that moment only a part of the work is done.
                while not any(client.has_what().values()):
                    time.sleep(0.01)
                os.kill(next(iter(pids.values())), signal.SIGKILL)
                killed.set()

            killer = threading.Thread(target=kill)
            killer.start()
            there = fairq.sweep(scenario, over, ["mqfq"], seeds=3, executor=client.get_executor())
            killer.join(timeout=60)
            assert killed.is_set()
            assert set(client.run(os.getpid).values()) != set(pids.values()), "the killed worker was replaced"
    assert bytes_of(here) == bytes_of(there)
