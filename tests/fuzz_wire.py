"""Mutated messages: none may crash, hang, take memory beyond the receiver's model, or pass for a model.

    python tests/fuzz_wire.py 1000000 [seed]

Half of them keep a checksum that no longer fits: these must be refused. The others get a new one, as an enemy
would write it, and most of these get sizes that fit, so that they reach everything behind: what is accepted
must be a message that `encode` itself writes of the state that came out.
"""

import random
import resource
import sys
import time
from collections import Counter
from itertools import product

import torch
from messages import HEADER, LAYOUT, repaired, state_of

from sparse_engine.wire import message
from sparse_engine.wire.header import MASKS, VALUES, WireError

NUMBERS = [0, 1, 7, 255, 256, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1]
ROOM = 256 << 20  # bytes that a million messages may add to the process


def originals() -> list[tuple[bytes, dict]]:
    """Messages in every form, and how they were made."""
    known, made = state_of(1), []
    for mask, values, pack in product(MASKS, VALUES, (False, True)):
        how = {"mask": mask, "values": values, "pack": pack}
        state = state_of(1) if mask == "known" else state_of()
        made.append((message.encode(state, sender=3, round=5, known=known, **how), how))
    return made


def mutated(blob: bytes, others: list[bytes], draw: random.Random) -> bytes:
    data = bytearray(blob)
    for _ in range(draw.choice([1, 1, 1, 2, 5])):
        at = (
            draw.randrange(len(data) + 1)
            if draw.random() < 0.6
            else draw.randrange(min(HEADER, len(data)) + 1)
        )
        match draw.randrange(9):
            case 0 if at < len(data):
                data[at] ^= 1 << draw.randrange(8)
            case 1 if at < len(data):
                data[at] = draw.randrange(256)
            case 2:  # a number where one may be
                size = draw.choice([1, 2, 4, 8])
                number = draw.choice(NUMBERS) + draw.randrange(-2, 3)
                at = at // size * size
                data[at : at + size] = (number % 2 ** (8 * size)).to_bytes(size, "little")
            case 3:
                del data[at:]
            case 4:
                data += draw.randbytes(draw.randrange(1, 70))
            case 5:
                del data[at : at + draw.randrange(1, 40)]
            case 6:
                data[at:at] = data[draw.randrange(len(data) + 1) :][: draw.randrange(1, 200)]
            case 7:
                other = draw.choice(others)
                data[at:] = other[at:]
            case 8:
                data[at : at + 8] = draw.randbytes(8)
    return bytes(data)


def resized(blob: bytes, draw: random.Random) -> bytes:
    """With one section as long as the others leave room for."""
    data, at = bytearray(blob), 40 + 8 * draw.randrange(3)
    sizes = [int.from_bytes(data[i : i + 8], "little") for i in (40, 48, 56) if i != at]
    if len(data) >= HEADER + sum(sizes):
        data[at : at + 8] = (len(data) - HEADER - sum(sizes)).to_bytes(8, "little")
    return bytes(data)


def run(count: int, seed: int = 0) -> Counter:
    """How many were refused, accepted, and left as they were."""
    draw, made, tally = random.Random(seed), originals(), Counter()
    like, known, blobs = LAYOUT, state_of(1).bitmap, [blob for blob, _ in made]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(count):
        blob, _how = draw.choice(made)
        changed = mutated(blob, blobs, draw)
        enemy = draw.random() < 0.5
        changed = repaired(resized(changed, draw) if draw.random() < 0.8 else changed) if enemy else changed
        if changed in blobs:
            tally["unchanged"] += 1
            continue
        began = time.process_time()
        try:
            state = message.decode(changed, like, known)
        except WireError as refusal:
            tally["refused"] += 1
            tally[" ".join(word for word in str(refusal).split() if word.isalpha())[:60]] += 1
        else:
            assert enemy, f"accepted although damaged: {changed.hex()}"
            tally["accepted"] += 1
            assert as_written(state, changed, known), f"no message of encode: {changed.hex()}"
        assert time.process_time() - began < 5, f"took seconds: {changed.hex()}"
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < ROOM, f"the process grew by {grown} bytes"
    return tally


def as_written(state, blob: bytes, known) -> bool:
    """Whether `encode` writes this message of this state; scales of q8 and q16 are the sender's choice."""
    header = message.inspect(blob)
    how = {"mask": header.mask, "values": header.values, "pack": header.packed, "known": known}
    assert all(bool(torch.isfinite(x).all()) for x in (state.values, state.rest))
    again = message.encode(state, sender=header.sender, round=header.round, **how)
    return header.values in ("q8", "q16") or again == blob


if __name__ == "__main__":
    started = time.monotonic()
    result = run(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    for what, number in result.most_common():
        print(f"{number:>10,}  {what}")
    print(f"{time.monotonic() - started:.0f} s")
