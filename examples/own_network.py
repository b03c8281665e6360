"""A network and data of your own: four clients, no files. Prints a line per round, then what came out."""

import numpy as np
from torch import nn

import fl


class TinyNet(nn.Module):
    """It is given those of num_classes, in_channels, size, in_features and shape that it takes."""

    def __init__(self, num_classes: int, in_channels: int, size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(in_channels, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * (size // 2) ** 2, num_classes),
        )

    def forward(self, x):
        return self.layers(x)


rng = np.random.default_rng(0)
y = np.arange(600) % 3
x = (rng.integers(0, 60, (600, 8, 8)) + 60 * y[:, None, None]).astype(np.uint8)  # brighter by class

settings = {"num_clients": 4, "num_rounds": 3, "topology.degree": 2, "training.epochs": 2}
simulation = fl.Simulation("demo", network=TinyNet, data=(x, y), set=settings)
for line in simulation:
    print(f"round {line['round']}: accuracy {line['accuracy_mean']:.2f}, density {line['density_mean']:.2f}")

result = simulation.result()
print(result.model(3))  # the compressed model of client 3
print(result.network(3))  # the same as an ordinary torch network
