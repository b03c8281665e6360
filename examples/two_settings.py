"""Two settings of one run in one table, a row per round; as a pandas frame where pandas is installed."""

import importlib.util

import fl
from fl.run.frame import Frame

settings = {"num_rounds": 3, "training.epochs": 1}
lines = []
for lr in (0.01, 0.1):
    result = fl.run("demo", set=settings | {"training.lr": lr})
    lines += [{"lr": lr, "round": t, "accuracy": a} for t, a in enumerate(result.metrics["accuracy_mean"])]

table = Frame(lines)
if importlib.util.find_spec("pandas"):
    frame = table.to_pandas()
    print(frame.pivot(index="round", columns="lr", values="accuracy"))
else:
    for line in table:
        print(f"lr {line['lr']}, round {line['round']}: accuracy {line['accuracy']:.3f}")
