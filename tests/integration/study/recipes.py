"""Which recipes claim to train as FP32 does, by whose word, and how a run is judged against that.

Named before the runs of the study (test_study_recipes.py) and after pilots with fp32, twin, pure-bf16 and nvfp4:
the claims, the sources, the figures, the bound, and the runs' options (docs/study/recipes.md says how).

The figures of a lane, one per seed:
    loss      mean training loss over the last tenth of the steps
    held-out  loss on held-out data after the last step
d = figure(lane) - figure(fp32), seed by seed. With n seeds and s the standard deviation over seeds,
    noise = sqrt((s(fp32)^2 + s(twin)^2) / n)
is the standard error of the difference of two such means of FP32 trainings with nothing in common but the
recipe. A lane matches when |mean d| <= 5 noise for both figures and no seed's figure is NaN or its lane
stopped. 5: as every stochastic test here (STYLE); with 2 (n - 1) = 8 degrees of freedom Student's t exceeds it
with probability 0.001, so some 50 comparisons of recipes that do match give a false alarm in 5 % of studies.
A recipe that claims to match must match on every model. One that is known not to must miss on at least one
model. What its source neither promises nor denies is measured and not judged.
"""

import dataclasses
import math

import numpy as np

SIGMAS = 5
FIGURES = ("loss", "held-out")


@dataclasses.dataclass
class Recipe:
    preset: str
    matches: bool | None  # whether its source says that it trains as FP32 does; None: it says neither
    source: str


APEX = "apex documentation, amp: "
MICIKEVICIUS = "Micikevicius et al., Mixed Precision Training, ICLR 2018"
ZAMIRAI = "Zamirai et al. 2021, arXiv:2010.06192"
TORCH = "PyTorch documentation, torch.amp: FP32's results in less time"
TF32 = "NVIDIA A100 whitepaper (2020): FP32's accuracy without changes"
TE = "for FP8 training as good as BF16's: "
FP16_SUMS = MICIKEVICIUS + ", section 3.3: products need FP32 sums"

RECIPES = [
    Recipe("apex-o0:1", True, APEX + "FP32 training, the accuracy baseline"),
    Recipe("apex-o1:1", True, APEX + "mixed precision, recommended"),
    Recipe("apex-o2:1", True, APEX + "mixed precision with FP32 masters"),
    Recipe("apex-o3:1", False, APEX + "may not achieve the stability of O1 and O2; a speed of light"),
    Recipe("fp16-optimizer-dynamic:1", True, MICIKEVICIUS + ", as apex implements it"),
    Recipe("fp16-optimizer-static:1", True, MICIKEVICIUS + ", with a constant scale"),
    Recipe("fp8-current:1", True, TE + "Micikevicius et al. 2022, arXiv:2209.05433"),
    Recipe("fp8-delayed:1", True, TE + "Micikevicius et al. 2022, arXiv:2209.05433"),
    Recipe("half:1", False, MICIKEVICIUS + ", section 3.1: FP16 weights lose the small updates"),
    Recipe("half-bn-fp32:1", False, MICIKEVICIUS + ", section 3.1: FP16 weights lose the small updates"),
    Recipe("mxfp8:1", True, TE + "Rouhani et al. 2023, arXiv:2310.10537"),
    Recipe("mxnet-amp:2.0", True, "MXNet documentation, AMP tutorial: FP32's accuracy"),
    Recipe("mxnet-amp-bf16:2.0", True, "MXNet documentation, AMP tutorial: FP32's accuracy"),
    Recipe("mxnet-multi-precision:1", None, "MXNet documentation, float16: advises a cast to FP32 before the softmax"),
    Recipe("mxnet-multi-precision-fp32-softmax:1", True, "MXNet documentation, float16: multi_precision"),
    Recipe("nvfp4:1", False, "arXiv:2509.25149: needs the Hadamard transform and layers in BF16, left out here"),
    Recipe("pure-bf16:1", False, ZAMIRAI + ": the standard algorithm degrades"),
    Recipe("pure-bf16-kahan:1", True, ZAMIRAI + ": Kahan updates match FP32"),
    Recipe("pure-bf16-master:1", True, "Kalamkar et al. 2019, arXiv:1905.12322: FP32's results"),
    Recipe("pure-bf16-stochastic:1", True, ZAMIRAI + ": stochastic updates match FP32"),
    Recipe("pure-fp16:1", False, FP16_SUMS),
    Recipe("pure-fp16-kahan:1", False, FP16_SUMS),
    Recipe("pure-fp16-master:1", False, FP16_SUMS),
    Recipe("pure-fp16-stochastic:1", False, FP16_SUMS),
    Recipe("tf32:1", True, TF32),
    Recipe("tf32-conv:1", True, TF32),
    Recipe("tf32-matmul:1", True, TF32),
    Recipe("torch-autocast-bf16:2.11", True, TORCH),
    Recipe("torch-autocast-bf16:2.12", True, TORCH),
    Recipe("torch-autocast-bf16-cpu:2.13", True, TORCH),
    Recipe("torch-autocast-fp16:2.11", True, TORCH),
    Recipe("torch-autocast-fp16:2.12", True, TORCH),
    Recipe("torch-autocast-fp16-cpu:2.13", True, TORCH),
]
REFERENCE = "fp32:1"  # always run, under the name fp32
WORDS = {True: "matches", False: "does not", None: "neither"}


def noise(fp32, twin):
    """Standard error of the difference of two means over the seeds. Arrays: a figure, one per seed."""
    return math.sqrt((np.var(fp32, ddof=1) + np.var(twin, ddof=1)) / len(fp32))


def within(lane, fp32, twin):
    """Whether one figure's mean difference lies in the seed noise; NaN never does."""
    difference = np.mean(np.subtract(lane, fp32))
    return bool(abs(difference) <= SIGMAS * noise(fp32, twin))


def matches(lane, fp32, twin):
    """The same of a lane's record {figure: [...], "died_at": [...]} on one model."""
    alive = all(step < 0 for step in lane["died_at"])
    return alive and all(within(lane[f], fp32[f], twin[f]) for f in FIGURES)


def as_claimed(recipe, matched):
    """Whether what was measured ({model: matches}) is what the source says; None: it says nothing."""
    if recipe.matches is None:
        return None
    return all(matched.values()) if recipe.matches else not all(matched.values())
