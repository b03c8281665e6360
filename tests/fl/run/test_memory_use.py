"""200 rounds take no more memory than 50: what a round leaves behind would show."""

import subprocess
import sys

SCRIPT = """
import gc
import fl

def resident():
    gc.collect()
    with open("/proc/self/status") as told:
        return next(int(line.split()[1]) for line in told if line.startswith("VmRSS"))

changes = {"num_rounds": 200, "num_clients": 40, "model.name": "mlp", "training.epochs": 1,
           "data.train_per_client": 30, "data.test_per_client": 10, "run.record_clients": False}
seen = {t: resident() for t, _ in enumerate(fl.Simulation("demo", set=changes, workers=2)) if t in (49, 199)}
print(*seen.values())
"""


def test_memory_stays_as_it_is():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    early, late = map(int, done.stdout.split())
    assert late < 1.02 * early, (early, late)
