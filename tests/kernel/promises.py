"""promises.py write|verify SOCKET LOG: writes blocks and prints `promised BLOCK GENERATION ROUND` for each that a flush or
FUA made safe; or checks that no promise in LOG was broken. The console with the promises outlives the guest."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "clients"))
sys.dont_write_bytecode = True
import nbd  # noqa: E402
from test_durable import BLOCK, BLOCKS, Writer, content  # noqa: E402


def promised(log):
    floors = {}
    with open(log, encoding="utf-8") as lines:
        for line in lines:
            _, index, generation, _ = line.split()
            floors[int(index)] = max(floors.get(int(index), 0), int(generation))
    return floors


def verify(address, log):
    client = nbd.Client(address, "a")
    for index, floor in promised(log).items():
        error, data = client.ask(nbd.READ, index * BLOCK, BLOCK)
        assert error == 0, f"reading block {index}: error {error}"
        at, generation = int.from_bytes(data[-16:-8], "big"), int.from_bytes(data[-8:], "big")
        assert at == index and generation >= floor, f"block {index}: generation {generation} of {at}, promised {floor}"
        assert data == content(index, generation), f"block {index} is torn"
    client.close()


class Told(dict):
    """A table of promises that prints each one when it is made."""

    def __setitem__(self, index, generation):
        if generation > self.get(index, 0):
            sys.stdout.write(f"promised {index} {generation} 0\n")
            sys.stdout.flush()
        super().__setitem__(index, generation)


def write(address, log):
    # New generations start far above every one that an earlier boot may have sent without seeing it
    # promised.
    floors = promised(log)
    start = max(floors.values(), default=0) + 100_000
    history = (dict.fromkeys(range(BLOCKS), start), Told(floors))
    Writer(address, "a", range(BLOCKS), history, seed=start).load()


if __name__ == "__main__":
    {"write": write, "verify": verify}[sys.argv[1]](sys.argv[2], sys.argv[3])
