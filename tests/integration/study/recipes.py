"""Which recipes claim to train as FP32 does, by whose word, and which outcomes of a run bear that out.

Named before the runs of the study (test_study_recipes.py). The outcome of a lane is the program's own
(analysis/run/outcome.h, read from `lockstep report RUN --format json`): nothing here measures a loss or sets a
limit.

A recipe that claims to match must be fine on every model. Unclear on some leaves the claim open: the run had too
few seeds to tell. Worse, stalled or broke on one model, and the claim is not confirmed. A recipe known not to match
must be worse, stalled or broke on at least one model. What its source neither promises nor denies is measured and
not judged.
"""

import dataclasses
import json
import re

GOOD = ("fine", "unclear")
BAD = ("worse", "stalled", "broke")
# Claims that hold are confirmed; those that more seeds must decide are open.
CONFIRMED, OPEN, NOT_CONFIRMED = "confirmed", "open", "not confirmed"


@dataclasses.dataclass
class Recipe:
    preset: str
    matches: bool | None  # whether its source says that it trains as FP32 does; None: it says neither
    source: str
    # The models of the study that it can run on; None: on all. Rules that keep the head or some blocks wide leave
    # nothing narrow in a model that has no other.
    models: tuple | None = None


APEX = "apex documentation, amp: "
MICIKEVICIUS = "Micikevicius et al., Mixed Precision Training, ICLR 2018"
ZAMIRAI = "Zamirai et al. 2021, arXiv:2010.06192"
TORCH = "PyTorch documentation, torch.amp: FP32's results in less time"
TF32 = "NVIDIA A100 whitepaper (2020): FP32's accuracy without changes"
TE = "for FP8 training as good as BF16's: "
DEEP = ()  # those of several blocks: none; test_study_recipes_2026.py has one
FP16_SUMS = MICIKEVICIUS + ", section 3.3: products need FP32 sums"

RECIPES = [
    Recipe("apex-o0:1", True, APEX + "FP32 training, the accuracy baseline"),
    Recipe("apex-o1:1", True, APEX + "mixed precision, recommended"),
    Recipe("apex-o2:1", True, APEX + "mixed precision with FP32 masters"),
    Recipe("apex-o3:1", False, APEX + "may not achieve the stability of O1 and O2; a speed of light"),
    Recipe("fp16-optimizer-dynamic:1", True, MICIKEVICIUS + ", as apex implements it"),
    Recipe("fp16-optimizer-static:1", True, MICIKEVICIUS + ", with a constant scale"),
    Recipe(
        "bf16-fp32-head:1", True, "as pure-bf16-master; MiniMax-M1, arXiv:2506.13585: closes the gap of the BF16 head"
    ),
    Recipe("bf16-mxfp8-backward:1", None, "Transformer Engine: offered, no word on its results"),
    Recipe("deepseek-v3:1", True, TE + "DeepSeek-V3, arXiv:2412.19437, section 3.3", ("lenet", "gpt")),
    Recipe("fp16-rl:1", True, TORCH),
    Recipe("fp8-blockwise:1", True, TE + "DeepSeek-V3, arXiv:2412.19437, section 3.3"),
    Recipe("fp8-blockwise-torchao:1", None, "torchao prototype/blockwise_fp8_training: no word on results"),
    Recipe("fp8-current:1", True, TE + "Micikevicius et al. 2022, arXiv:2209.05433"),
    Recipe("fp8-current-bf16-ends:1", True, TE + "Megatron-Bridge's recipe of current scaling", DEEP),
    Recipe("fp8-delayed:1", True, TE + "Micikevicius et al. 2022, arXiv:2209.05433"),
    Recipe("fp8-rowwise:1", None, "torchao float8/config.py: scales for accuracy, no word on results"),
    Recipe("fp8-rowwise-bf16-wgrad:1", None, "torchao float8/config.py: its most accurate option, no word on results"),
    Recipe("fp8-tensorwise:1", True, TE + "Micikevicius et al. 2022, arXiv:2209.05433"),
    Recipe("fsdp2-bf16:1", True, "Kalamkar et al. 2019, arXiv:1905.12322: FP32's results"),
    Recipe("fsdp2-bf16-param-reduce:2.14", None, "PyTorch documentation, FSDP2: offered, no word on its results"),
    Recipe("fsdp2-bf16-param-reduce:2.15", True, "Kalamkar et al. 2019, arXiv:1905.12322: FP32's results"),
    Recipe("half:1", False, MICIKEVICIUS + ", section 3.1: FP16 weights lose the small updates"),
    Recipe("half-bn-fp32:1", False, MICIKEVICIUS + ", section 3.1: FP16 weights lose the small updates"),
    Recipe("mxfp8:1", True, TE + "Rouhani et al. 2023, arXiv:2310.10537"),
    Recipe("mxfp8-bf16-backward:1", None, "Transformer Engine: offered, no word on its results"),
    Recipe("mxfp8-bf16-wgrad:1", True, TE + "Rouhani et al. 2023, arXiv:2310.10537"),
    Recipe("mxfp8-nvfp4-backward:1", None, "Transformer Engine: offered, no word on its results"),
    Recipe("mxnet-amp:2.0", True, "MXNet documentation, AMP tutorial: FP32's accuracy"),
    Recipe("mxnet-amp-bf16:2.0", True, "MXNet documentation, AMP tutorial: FP32's accuracy"),
    Recipe("mxnet-multi-precision:1", None, "MXNet documentation, float16: advises a cast to FP32 before the softmax"),
    Recipe("mxnet-multi-precision-fp32-softmax:1", True, "MXNet documentation, float16: multi_precision"),
    Recipe("nvfp4-bf16-ends:1", True, "arXiv:2509.25149: loss within 1.5 % of FP8's", DEEP),
    Recipe("nvfp4-hadamard-drawn:1", None, "arXiv:2509.25149: drawn signs gain nothing over fixed ones"),
    Recipe("nvfp4-hadamard:1", None, "arXiv:2509.25149: near BF16 with some layers in BF16, left out here"),
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


def lanes_of(model):
    return ["fp32"] + [recipe.preset for recipe in RECIPES if recipe.models is None or model in recipe.models]


WORDS = {True: "matches", False: "does not", None: "neither"}


def standing(recipe, outcomes):
    """What {model: outcome} make of the claim: CONFIRMED, OPEN or NOT_CONFIRMED; "" if there is none."""
    found = list(outcomes.values())
    if recipe.matches is None or not found:
        return ""
    if recipe.matches:
        if all(outcome == "fine" for outcome in found):
            return CONFIRMED
        return OPEN if all(outcome in GOOD for outcome in found) else NOT_CONFIRMED
    return CONFIRMED if any(outcome in BAD for outcome in found) else NOT_CONFIRMED


def sentences(text, lanes):
    """{lane: what the report says of it under "Verdict"} of a report as text."""
    section = re.search(r"^Verdict\n=+\n(.*?)^[^\n]+\n=+$", text, flags=re.S | re.M).group(1)
    paragraphs = [" ".join(p.split()) for p in section.split("\n\n")]
    return {lane: p for p in paragraphs for lane in lanes if re.match(re.escape(lane) + "[ ,]", p)}


def measure(lockstep, model, options, lanes, path):
    """{lane: its object of `report --format json`, and "sentence" of the text} of one run; deletes the run file."""
    lockstep("replay", model, *options, "--lanes", ",".join(lanes), "-o", path)
    found = json.loads(lockstep("report", path, "--format", "json").stdout)
    said = sentences(lockstep("report", path).stdout, lanes)
    for left in path.parent.glob(path.name + "*"):
        left.unlink()
    assert not found["unfinished_seeds"]
    return {lane["name"]: lane | {"sentence": said.get(lane["name"], "")} for lane in found["lanes"]}
