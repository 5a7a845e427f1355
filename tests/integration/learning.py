"""What the built-in models must learn: one table for the short runs in CI and the long ones of the study.

A row names the run (model, data, options) and the figure it must reach, set before it was run:
    ("accuracy", x)  held-out accuracy at least x
    ("nats", x)      held-out loss at most x, nats per character
    ("share", x)     mean training loss of the last tenth of the steps at most x times that of step 0
"""

import dataclasses

import h5py
import numpy as np

LANES = ["fp32", "torch-autocast-bf16"]


@dataclasses.dataclass
class Run:
    model: str
    options: list
    figure: tuple
    data: str = ""  # "", "mnist" or "text": files of the tests' data

    @property
    def name(self):
        return f"{self.model}-{self.data}" if self.data else self.model


ADAMW = ["--optimizer", "adamw", "--lr", "1e-3"]
MNIST_EPOCHS = ["--steps", 375, "--batch", 64]  # 8000 digits: three epochs

SHORT = [
    Run("lenet", MNIST_EPOCHS, ("accuracy", 0.97), "mnist"),
    Run("resnet20", ["--steps", 50, "--batch", 32, "--lr", "0.05"], ("share", 0.9)),
    Run("unet", ["--steps", 50, "--batch", 8, *ADAMW], ("share", 0.9)),
    Run("detector", ["--steps", 50, "--batch", 16, *ADAMW], ("share", 0.9)),
    Run("vae", ["--steps", 50, "--batch", 64, *ADAMW], ("share", 0.9)),
    Run("vit", ["--steps", 50, "--batch", 32, "--size", "layers=2", *ADAMW], ("share", 1.0)),
    Run("gpt", ["--steps", 50, "--batch", 8, "--size", "layers=2,width=128", *ADAMW], ("share", 0.9)),
    Run("bert", ["--steps", 50, "--batch", 16, *ADAMW], ("share", 0.95)),
    Run("lstm", ["--steps", 50, "--batch", 16, "--optimizer", "adamw", "--lr", "3e-3"], ("share", 0.9)),
]

LONG = [
    Run("lenet", MNIST_EPOCHS, ("accuracy", 0.97), "mnist"),
    Run("gpt", ["--steps", 1500, "--batch", 16, "--size", "dropout=0", *ADAMW], ("nats", 2.2), "text"),
    Run("lstm", ["--steps", 1500, "--batch", 32, "--optimizer", "adamw", "--lr", "3e-3"], ("nats", 2.2),
        "text"),
    Run("resnet20", ["--steps", 400, "--batch", 64, "--lr", "0.05"], ("share", 0.5)),
    Run("unet", ["--steps", 300, "--batch", 16, *ADAMW], ("share", 0.5)),
    Run("detector", ["--steps", 400, "--batch", 32, *ADAMW], ("share", 0.5)),
    Run("vae", ["--steps", 600, "--batch", 64, *ADAMW], ("share", 0.5)),
    Run("vit", ["--steps", 800, "--batch", 32, *ADAMW], ("share", 0.5)),
    Run("bert", ["--steps", 1000, "--batch", 32, *ADAMW], ("share", 0.5)),
]


def learn(lockstep, run, path, data_spec):
    """{lane: (measured figure, seconds of the lane)}; asserts nothing."""
    data = ["--data", data_spec] if data_spec else []
    lockstep("replay", run.model, *data, *run.options, "--lanes", ",".join(LANES), "-o", path)
    kind, _ = run.figure
    found = {}
    with h5py.File(path, "r") as file:
        for lane in LANES:
            group = file["lanes"][lane]
            loss = np.array(group["loss"])
            if kind == "accuracy":
                figure = float(group["eval/accuracy"][-1])
            elif kind == "nats":
                figure = float(group["eval/loss"][-1])
            else:
                figure = float(np.mean(loss[-max(1, len(loss) // 10):]) / loss[0])
            found[lane] = (figure, float(np.sum(group["seconds"])))
    return found


def reached(figure, measured):
    kind, limit = figure
    return measured >= limit if kind == "accuracy" else measured <= limit
