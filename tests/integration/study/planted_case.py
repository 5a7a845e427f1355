"""What a planted case consists of, and the steps that all kinds share: draw, capture, write a policy."""

import dataclasses
import pathlib
from collections.abc import Callable

import numpy as np
import planted_models as models
import planted_runner as runner
import torch
from torch.nn import functional as F

# Lanes without a loss scale, so that an overflow of the forward pass is all that happens.
AUTOCAST_NO_SCALE = 'extends = "torch-autocast-fp16:2.12"\n[loss_scale]\nkind = "none"\n'
HALF = 'extends = "half:1"\n'
HALF_MASTERS = 'extends = "half:1"\n[optimizer]\nmaster_weights = true\narithmetic = "fp32"\nstate = "fp32"\n'
STATIC = 'extends = "fp16-optimizer-static:1"\n'  # a constant scale of 128, nothing checked
BF16_MASTERS = 'extends = "pure-bf16-master:1"\n'
LANE = "planted.toml"  # the name of the lane of a policy file
PLAIN = ""  # FP32 but for what is added


@dataclasses.dataclass
class Plant:
    """A case that is ready to run, and the truth about it."""

    kind: str
    model: str  # what was drawn, in words
    about: str  # what was planted, in words
    layers: set | None  # the layers that a right answer may name; None: the lane as a whole, or any layer
    command: list  # of `lockstep replay`, without the output
    lane: str
    fires: Callable  # Raw -> '' or why the fault did not fire
    kinds: str = ""  # the row of planted_names.ACCEPTED, if it is not the kind's own
    says: str = ""  # what the sentence must contain


class Redraw(Exception):
    """This combination cannot be planted."""


class Scene:
    """A folder, a random generator, and what is drawn from it."""

    def __init__(self, rng, folder):
        self.rng, self.folder = rng, pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.half_state = False

    def chance(self, p=0.5):
        return bool(self.rng.random() < p)

    def pick(self, options):
        options = list(options)
        if not options:
            raise Redraw("nothing to pick from")
        return options[int(self.rng.integers(len(options)))]

    def between(self, low, high):
        """Uniform in the logarithm."""
        return float(low * (high / low) ** self.rng.random())

    def draw(self, **options):
        self.drawn = models.draw(self.rng, **options)
        return self.drawn

    def model(self):
        return self.drawn.model

    def policy(self, text):
        """Writes the policy of the lane. The optimizer of `half` is in FP16, where Adam's eps and squares vanish: a
        fault of its own, so such lanes get SGD."""
        self.half_state = text.startswith(HALF) and "arithmetic" not in text
        path = self.folder / LANE
        path.write_text(text)
        return path.name

    def look(self, path, loss_of=None):
        """(shape, largest magnitude, gradient) of a module's output on the first batch, in FP32."""
        seen = {}

        def keep(module, inputs, output):
            output.retain_grad()
            seen["y"] = output

        hook = self.model().get_submodule(path).register_forward_hook(keep)
        (loss_of or plain_loss)(self.model(), self.drawn.batches[0]).backward()
        hook.remove()
        self.model().zero_grad()
        y = seen["y"]
        return tuple(y.shape), float(y.detach().abs().max()), y.grad.clone()

    def features(self, path):
        return self.look(path)[0][-1]

    def optimizer(self, name, lr, parameters=None):
        parameters = parameters or [p for p in self.model().parameters() if p.requires_grad]
        if name == "sgd":
            return torch.optim.SGD(parameters, lr=lr, momentum=0.9)
        return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name](parameters, lr=lr)

    def capture(self, optimizer=None, loss_of=None, name="case", **loop):
        """Captures the drawn model as it is now; an ordinary optimizer unless one is given. Returns the file's name.
        loop: amp, scaler of planted_runner.capture."""
        if optimizer is None:
            usual = [("sgd", 0.05), ("adam", 1e-3), ("adamw", 1e-3)]
            optimizer = self.optimizer(*self.pick(usual[:1] if self.half_state else usual))
        path = self.folder / f"{name}.lscap.h5"
        losses = runner.capture(path, self.drawn, loss_of or plain_loss, optimizer, **loop)
        if loop.get("amp") is None and not np.isfinite(losses).all():
            raise Redraw("the loop itself does not stay finite in FP32")
        return path.name


def plain_loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def scaled_loss(factor):
    return lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]) * factor


def replay(path, lanes, steps=None, *more):
    command = ["replay", path, "--lanes", ",".join(["fp32", *lanes]), "--sums-every", 4]
    return command + ([] if steps is None else ["--steps", steps, "--cycle"]) + list(more)


def first_overflow_is_at(layers, point=None):
    """The first value that is not finite overflowed there, and the reference is finite."""

    def fires(raw):
        if not raw.reference_is_finite():
            return "the reference is not finite"
        first = raw.first_bad()
        if first is None:
            return "nothing overflows"
        step, site = first
        if raw["counts/nan"][step, site] > 0:
            return f"a NaN comes first: {raw.site(site)}"
        if raw.layer[site] not in layers or raw.scaled[site]:
            return f"the first overflow is at {raw.site(site)}"
        if point and raw.point[site] != point:
            return f"the first overflow is of the {raw.point[site]}: {raw.site(site)}"
        return ""

    return fires
