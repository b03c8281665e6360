"""Flower's simulation on the case of `bench scale`: processor milliseconds per client-round.

    python3 -m venv flower && flower/bin/pip install "flwr[simulation]" torch
    flower/bin/python bench/flower_rounds.py --clients 1000 --rounds 2

A script of its own, for an environment of its own: it imports nothing of this repository. FedAvg, LeNet5 on
28 x 28 images, 50 samples per client, batches of 32, 1 epoch of SGD; every client trains in every round, on
one core. Time is that of all processes that it started (Ray's, too), without what a start takes: two runs, of
one round and of `--rounds` more, and their difference. Prints a line of JSON; where Flower is missing it says
so.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """Processor time of this process and of all below it, those that ended included."""
    below, parents = 0.0, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                told = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:  # it has just ended
                continue
            parents[int(entry.name)] = int(told[1]), sum(map(int, told[11:15])) / TICKS
    for process in parents:
        chain = process
        while chain in parents and chain != os.getpid():
            chain = parents[chain][0]
        below += parents[process][1] if chain == os.getpid() else 0.0
    return below


def apps(clients: int, rounds: int):
    """Flower's two apps: a server that averages, clients that train."""
    import torch
    from flwr.client import ClientApp, NumPyClient
    from flwr.common import Context, ndarrays_to_parameters
    from flwr.server import ServerApp, ServerAppComponents, ServerConfig
    from flwr.server.strategy import FedAvg
    from torch import nn
    from torch.nn import functional as F

    def network() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
            nn.Linear(84, 10),
        )  # fmt: skip

    class Client(NumPyClient):
        def __init__(self, number: int) -> None:
            self.net = network()
            made = torch.Generator().manual_seed(number)
            self.x = torch.randn(50, 1, 28, 28, generator=made)
            self.y = torch.randint(0, 10, (50,), generator=made)

        def fit(self, parameters, config):
            names = self.net.state_dict().keys()
            weights = {name: torch.tensor(x) for name, x in zip(names, parameters, strict=True)}
            self.net.load_state_dict(weights)
            step = torch.optim.SGD(self.net.parameters(), lr=0.05)
            for x, y in zip(self.x.split(32), self.y.split(32), strict=True):
                step.zero_grad()
                F.cross_entropy(self.net(x), y).backward()
                step.step()
            return [x.numpy() for x in self.net.state_dict().values()], 50, {}

    def client(context: Context):
        torch.set_num_threads(1)
        return Client(int(context.node_config["partition-id"])).to_client()

    def server(context: Context):
        first = ndarrays_to_parameters([x.numpy() for x in network().state_dict().values()])
        strategy = FedAvg(
            fraction_fit=1.0,
            fraction_evaluate=0.0,
            min_fit_clients=clients,
            min_available_clients=clients,
            initial_parameters=first,
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))

    return ServerApp(server_fn=server), ClientApp(client_fn=client)


def spent(clients: int, rounds: int) -> tuple[float, float]:
    """Processor and wall seconds of a simulation."""
    from flwr.simulation import run_simulation

    server, client = apps(clients, rounds)
    began, cpu = time.perf_counter(), cpu_seconds()
    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 1}},
    )
    return cpu_seconds() - cpu, time.perf_counter() - began


def main() -> int:
    given = argparse.ArgumentParser(
        description="Flower's simulation: processor milliseconds per client-round"
    )
    given.add_argument("--clients", type=int, default=1000)
    given.add_argument("--rounds", type=int, default=2)
    asked = given.parse_args()
    try:
        import flwr
        import ray
        import torch
    except ImportError as missing:
        print(
            f'Flower is not installed here ({missing}): pip install "flwr[simulation]" torch', file=sys.stderr
        )
        return 3
    (cpu, wall), (more_cpu, more_wall) = spent(asked.clients, 1), spent(asked.clients, 1 + asked.rounds)
    turns = asked.clients * asked.rounds
    told = {
        "clients": asked.clients,
        "rounds": asked.rounds,
        "cpu_ms": 1e3 * (more_cpu - cpu) / turns,
        "wall_ms": 1e3 * (more_wall - wall) / turns,
        "versions": {"flwr": flwr.__version__, "ray": ray.__version__, "torch": torch.__version__},
    }
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
