"""An algorithm of your own, in a file beside this one (gossip.py), with a setting of its own."""

from pathlib import Path

import fl

for share in (0.2, 0.8):
    changes = {"num_rounds": 2, "training.epochs": 1, "gossip.share": share}
    result = fl.run("demo", algorithm=Path(__file__).with_name("gossip.py"), set=changes)
    print(f"share {share}: accuracy {result.summary['accuracy_last']:.3f}, {result.model(0)}")
