"""What the built-in models must learn: one table for the short runs in CI and the long ones of the study.

A row names the run (model, data, options) and the figure it must reach. The figures of LONG were named before
any run, options and the limits of SHORT after pilot runs. SHORT must do better than a constant prediction, which falls
to the level of the answers' frequencies: shares of the first loss (0.9 to 1.0) passed without learning.
    ("accuracy", x)  held-out accuracy at least x
    ("nats", x)      held-out loss at most x, nats per character
    ("share", x)     mean training loss of the last tenth of the steps at most x times that of step 0
    ("chance", x)    likewise, at most x times the model's CHANCE
"""

import dataclasses
import resource

import h5py
import numpy as np

LANES = ["fp32", "torch-autocast-bf16"]


@dataclasses.dataclass
class Run:
    model: str
    options: list
    figure: tuple
    data: str = ""  # "", "mnist" or "text": files of the tests' data
    cpu_limit: float = 0  # seconds of CPU that the whole run, all lanes and threads, may take; 0: any

    @property
    def name(self):
        return f"{self.model}-{self.data}" if self.data else self.model


ADAMW = ["--optimizer", "adamw", "--lr", "1e-3"]
MNIST_EPOCHS = ["--steps", 375, "--batch", 64]  # 8000 digits: three epochs

# The loss of a constant predictor on the default data, which needs no learning beyond how often each answer
# comes: for classes the entropy of their frequencies, for vae the mean image, for the detector no offsets.
# tests/train/test_chance.cc computes them.
CHANCE = {
    "resnet20": 2.287,
    "unet": 0.911,
    "detector": 0.207,
    "vae": 303.8,
    "vit": 2.287,
    "gpt": 2.946,
    "bert": 2.920,
    "lstm": 2.946,
}

SHORT = [
    Run("lenet", MNIST_EPOCHS, ("accuracy", 0.97), "mnist"),
    Run("resnet20", ["--steps", 50, "--batch", 32, "--lr", "0.05"], ("chance", 0.85)),
    Run("unet", ["--steps", 50, "--batch", 8, "--optimizer", "adamw", "--lr", "5e-3"], ("chance", 0.85)),
    Run("detector", ["--steps", 50, "--batch", 16, *ADAMW], ("chance", 0.85)),
    Run("vae", ["--steps", 50, "--batch", 64, *ADAMW], ("chance", 0.85)),
    Run("vit", ["--steps", 50, "--batch", 32, "--size", "layers=2", *ADAMW], ("chance", 0.85)),
    Run("gpt", ["--steps", 50, "--batch", 8, "--size", "layers=2,width=128", *ADAMW], ("chance", 0.85)),
    Run("bert", ["--steps", 240, "--batch", 64, "--size", "dropout=0,context=16", *ADAMW], ("chance", 0.85)),
    Run("lstm", ["--steps", 50, "--batch", 16, "--optimizer", "adamw", "--lr", "3e-3"], ("chance", 0.85)),
]

LONG = [
    Run("lenet", MNIST_EPOCHS, ("accuracy", 0.97), "mnist"),
    Run("gpt", ["--steps", 500, "--batch", 16, "--size", "dropout=0", *ADAMW], ("nats", 2.2), "text", 900),
    Run("lstm", ["--steps", 400, "--batch", 32, "--optimizer", "adamw", "--lr", "3e-3"], ("nats", 2.2), "text", 900),
    Run("resnet20", ["--steps", 400, "--batch", 64, "--lr", "0.05"], ("share", 0.5)),
    Run("unet", ["--steps", 300, "--batch", 16, *ADAMW], ("share", 0.5)),
    Run("detector", ["--steps", 400, "--batch", 32, *ADAMW], ("share", 0.5)),
    Run("vae", ["--steps", 600, "--batch", 64, *ADAMW], ("share", 0.5)),
    Run("vit", ["--steps", 800, "--batch", 32, *ADAMW], ("share", 0.5)),
    Run("bert", ["--steps", 400, "--batch", 64, "--size", "dropout=0,context=16", *ADAMW], ("share", 0.5)),
]


def cpu_seconds_of_children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def learn(lockstep, run, path, data_spec, *more):
    """({lane: measured figure}, CPU seconds of the whole run, with `more` options); asserts nothing."""
    data = ["--data", data_spec] if data_spec else []
    before = cpu_seconds_of_children()
    lockstep("replay", run.model, *data, *run.options, "--lanes", ",".join(LANES), "-o", path, *more)
    cpu_seconds = cpu_seconds_of_children() - before
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
                unit = CHANCE[run.model] if kind == "chance" else loss[0]
                figure = float(np.mean(loss[-max(1, len(loss) // 10) :]) / unit)
            found[lane] = figure
    return found, cpu_seconds


def reached(figure, measured):
    kind, limit = figure
    return measured >= limit if kind == "accuracy" else measured <= limit
