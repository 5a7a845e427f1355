"""Cast decisions of the torch presets, op by op on every built-in model.

CPU lists: the twins of torch_models.py run under torch.autocast("cpu"); a dispatch mode below autocast
records in which dtype each op was run, and `lockstep explain --json` says the same of ours.
CUDA lists: the same twins run on fake tensors that name a GPU, which takes none: PyTorch's
CUDA autocast decides, and no kernel runs. For 2.11, whose lists this PyTorch does not have, the formats
are derived in Python from autocast_mode.h; the table is kept in tests/golden/casts_torch_cuda.txt
(LOCKSTEP_REWRITE_GOLDEN=1 rewrites it).
"""

import json
import os
import pathlib
import subprocess
import warnings

import pytest
import test_torch_models as steps
import torch
import torch_models as twins
from cpu_kernels import need_low_precision_lstm
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "casts_torch_cuda.txt"
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
FORMATS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}

# Ops that move values and compute none: a view in torch, no op at all, or a copy.
MOVES = {"reshape", "permute", "slice", "expand"}

# What torch runs for an op of ours. Its views, casts and integer arithmetic are left out.
ATEN = {
    "linear": ["addmm"],
    "matmul": ["bmm"],
    "conv2d": ["convolution"],
    "conv_transpose2d": ["convolution"],
    "batch_norm": ["native_batch_norm"],
    "layer_norm": ["native_layer_norm"],
    "softmax": ["_softmax"],
    "max_pool2d": ["max_pool2d_with_indices"],
    "adaptive_avg_pool2d": ["mean"],
    "dropout": ["mul", "div"],
    "pad": ["constant_pad_nd"],
}
SAME_OP = {
    "mm": "addmm",
    "nll_loss2d_forward": "nll_loss_forward",
    "stack": None,
    "zeros": None,
    "rand": None,
    "ge": None,
    "arange": None,
}
VIEWS = {
    "t",
    "view",
    "_unsafe_view",
    "transpose",
    "permute",
    "expand",
    "slice",
    "split",
    "detach",
    "alias",
    "clone",
    "unsqueeze",
    "select",
    "_to_copy",
    "reshape",
}


def explain(binary_dir, name, policy):
    _, sizes, _, dropout = steps.MODELS[name]
    words = [f"{size}={value}" for size, value in sizes.items()]
    if name in steps.HAS_DROPOUT:
        words.append(f"dropout={dropout}")
    command = [str(binary_dir / "lockstep"), "explain", name, "--policy", policy, "--json", "--batch", str(steps.BATCH)]
    if words:
        command += ["--size", ",".join(words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def forward_ops(program):
    return [op for op in program["ops"] if not op["backward"]]


class Recorder(TorchDispatchMode):
    """(op, dtype of its first result) of all that floating ops compute; tensors without data do not count."""

    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        first = result[0] if isinstance(result, (tuple, list)) else result
        name = function.overloadpacket.__name__
        name = SAME_OP.get(name, name)
        if not isinstance(first, torch.Tensor):  # the device that a fake tensor claims
            return result
        if name and name not in VIEWS and first.dtype in FORMATS and not first.is_meta:
            self.ops.append((name, FORMATS[first.dtype]))
        return result


def torch_batch(name, sizes, classes):
    image = steps.IMAGES.get(name, (3, 32, 32))
    batch = {"images": torch.randn(steps.BATCH, *image), "noise": torch.randn(steps.BATCH, 8)}
    positions = {"unet": (steps.BATCH, 32, 32), "detector": (steps.BATCH * 80,)}
    batch["labels"] = torch.randint(0, classes or 2, positions.get(name, (steps.BATCH,)))
    if name == "detector":
        batch["boxes"], batch["box_mask"] = torch.randn(steps.BATCH * 80, 4), torch.ones(steps.BATCH * 80, 4)
    if name in ("gpt", "bert", "lstm"):
        shape = (steps.BATCH, sizes["context"])
        batch["tokens"] = torch.randint(0, classes, shape)
        batch["labels"] = torch.randint(0, classes, (shape[0] * shape[1],))
    return batch


class RandomMasks(twins.Masks):
    def __init__(self, p):
        super().__init__(p, [])

    def __call__(self, x):
        return x if self.p == 0 else self.apply(x, torch.rand(x.shape) >= self.p)


def make_twin(name):
    """A twin in training mode, a batch for it, and its rate of dropout."""
    make, sizes, classes, dropout = steps.MODELS[name]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    keep = {k: v for k, v in sizes.items() if k != "context" or name in ("gpt", "bert")}
    model = make(**keep, **({"classes": classes} if classes else {})).train()
    return model, torch_batch(name, sizes, classes), dropout


def run_twin(name, low):
    model, batch, dropout = make_twin(name)
    masks = RandomMasks(dropout)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autocast("cpu", DTYPES[low]), Recorder() as recorder:
            model(batch, masks)
    return recorder.ops


class FakeMasks(twins.Masks):
    def __init__(self, p):
        super().__init__(p, [])

    def __call__(self, x):
        return x if self.p == 0 else self.apply(x, torch.empty(x.shape, dtype=torch.bool, device="cuda"))


def run_fake_cuda_twin(name, low):
    """The ops of a twin whose tensors have no values and name a GPU as their device."""
    model, batch, dropout = make_twin(name)
    with torch.no_grad(), FakeTensorMode(), torch.device("cuda"):

        def fake(tensor):
            return None if tensor is None else torch.empty(tensor.shape, dtype=tensor.dtype)

        for module in model.modules():
            module._parameters = {key: fake(value) for key, value in module._parameters.items()}
            for key, value in vars(module).items():
                if isinstance(value, torch.Tensor):  # a causal mask
                    setattr(module, key, fake(value))
            module._buffers = dict.fromkeys(module._buffers)  # no running statistics: their copies need a GPU
        batch = {key: fake(value) for key, value in batch.items()}
        torch.set_autocast_dtype("cuda", DTYPES[low])
        torch.set_autocast_enabled("cuda", True)  # torch.autocast("cuda") wants a GPU
        try:
            with warnings.catch_warnings(), Recorder() as recorder:
                warnings.simplefilter("ignore")
                model(batch, FakeMasks(dropout))
        finally:
            torch.set_autocast_enabled("cuda", False)
            torch.clear_autocast_cache()
    return recorder.ops


def runs_of(program, lstm_runs):
    """(op of torch, format of its result) of the program's forward ops."""
    runs = []
    for op in forward_ops(program):
        if op["op"] in MOVES:
            continue
        made = op["outputs"][0]["format"]
        if op["op"] == "cross_entropy":  # its first part may leave log-probabilities in another format
            runs += [("_log_softmax", op.get("inside", made)), ("nll_loss_forward", made)]
        elif op["op"] == "lstm":
            runs += [(run, made) for run in lstm_runs]
        else:
            runs += [(run, made) for run in ATEN.get(op["op"], [op["op"]])]
    return runs


def by_op(pairs):
    """op -> the formats of its runs, in their order: two programs may interleave ops differently."""
    table = {}
    for op, made in pairs:
        table.setdefault(op, []).append(made)
    return table


# Torch runs an FP16 LSTM on the CPU as single ops, which Lockstep's one op has no counterpart to; in
# BF16 it is one op there, too.
CPU_CASES = [(name, low) for name in steps.MODELS for low in DTYPES if (name, low) != ("lstm", "fp16")]


@pytest.mark.parametrize("name,low", CPU_CASES)
def test_cpu_casts_equal_torch(binary_dir, name, low):
    if name == "lstm":
        need_low_precision_lstm()
    program = explain(binary_dir, name, f"torch-autocast-{low}-cpu:2.13")
    ours = runs_of(program, ["mkldnn_rnn_layer"] * steps.MODELS[name][1].get("layers", 0))
    theirs = run_twin(name, low)
    assert by_op(ours) == by_op(theirs)
    assert {made for _, made in ours} == {low, "fp32"}
    print(f"{name} {low}: {len(ours)} ops alike, {sum(made == low for _, made in ours)} of them low")


# Not on fake tensors: without cuDNN PyTorch runs an LSTM as single ops, which Lockstep's one op has no
# counterpart to; and indexing (resnet20, vit) asks a real GPU.
ON_FAKE_CUDA = [name for name in steps.MODELS if name not in ("lstm", "resnet20", "vit")]


@pytest.mark.parametrize("low", DTYPES)
@pytest.mark.parametrize("name", ON_FAKE_CUDA)
def test_cuda_casts_equal_torch(binary_dir, name, low):
    ours = runs_of(explain(binary_dir, name, f"torch-autocast-{low}"), [])
    assert by_op(ours) == by_op(run_fake_cuda_twin(name, low))
    assert {made for _, made in ours} == {low, "fp32"}


# PyTorch's CUDA lists, as far as Lockstep has the ops, under torch's names. Anything else follows
# type promotion. Source: aten/src/ATen/autocast_mode.h.
LOWER_PRECISION_FP = {
    "conv2d",
    "conv_transpose2d",
    "prelu",
    "matmul",
    "bmm",
    "mm",
    "linear",
    "addmm",
    "lstm_cell",
    "gru_cell",
    "scaled_dot_product_attention",
}
FP32 = {
    "exp",
    "log",
    "reciprocal",
    "rsqrt",
    "pow",
    "softplus",
    "layer_norm",
    "group_norm",
    "nll_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "binary_cross_entropy_with_logits",
    "logsumexp",
    "upsample_nearest2d",
    "upsample_bilinear2d",
}
FP32_SET_OPT_DTYPE = {"prod", "softmax", "log_softmax", "cumprod", "cumsum", "linalg_vector_norm", "sum"}
ADDED_IN_2_12 = {"rms_norm"}
TORCH_NAME = {
    "cross_entropy": "nll_loss",
    "bce_with_logits": "binary_cross_entropy_with_logits",
    "lstm": "lstm_cell",
    "gru": "gru_cell",
    "sdpa": "scaled_dot_product_attention",
}
# The operand that decides the result's dtype where affine parameters may be wider.
FIRST_DECIDES = {"batch_norm", "layer_norm", "group_norm", "rms_norm"}


def derived(program, low, version):
    """{value: format} by the lists above, from the formats of what stands between steps."""
    formats = dict(program["values"])
    for op in forward_ops(program):
        name = TORCH_NAME.get(op["op"], op["op"])
        read = [formats[operand["value"]] for operand in op["inputs"]]
        floats = [f for f in read if f != "int"]
        if name in LOWER_PRECISION_FP:
            made = low
        elif name in FP32 | FP32_SET_OPT_DTYPE or (name in ADDED_IN_2_12 and version == "2.12"):
            made = "fp32"
        elif name in FIRST_DECIDES:
            made = floats[0]
        else:
            made = low if floats and set(floats) == {low} else "fp32"
        formats[op["outputs"][0]["value"]] = made
        for output in op["outputs"][1:]:  # indices, states, statistics: not what autocast decides
            formats[output["value"]] = output["format"]
    return formats


def table_of(program, low):
    lines = []
    for op in forward_ops(program):
        read = [operand["as"] for operand in op["inputs"]]
        line = f"{op['node']:>5} {op['layer']} {op['op']}: {' '.join(read)} -> {op['outputs'][0]['format']}"
        lines.append(line.replace(low, "low"))
    return lines


@pytest.mark.parametrize("version", ["2.11", "2.12"])
@pytest.mark.parametrize("low", DTYPES)
def test_cuda_casts_follow_the_lists(binary_dir, low, version):
    table, count = [], 0
    for name in steps.MODELS:
        program = explain(binary_dir, name, f"torch-autocast-{low}:{version}")
        formats = derived(program, low, version)
        for op in forward_ops(program):
            made = op["outputs"][0]
            assert made["format"] == formats[made["value"]], f"{name}: {op}"
            count += 1
        table += [name] + table_of(program, low)
    text = (
        "# Forward ops of the built-in models (small sizes) under torch's CUDA lists: formats read\n"
        "# and written, `low` being fp16 or bf16. The same for 2.11 and 2.12.\n"
    )
    text += "\n".join(table) + "\n"
    if os.environ.get("LOCKSTEP_REWRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
    print(f"{low} {version}: {count} ops of {len(steps.MODELS)} models as the lists say")


@pytest.mark.parametrize("low", DTYPES)
def test_torch_sums_a_shared_weights_gradient_in_the_low_format(low):
    """What tests/lower/test_lower.cc holds Lockstep to: one cast of the weight in the forward pass, its
    gradients added on that copy, then one cast back."""

    class Everything(TorchDispatchMode):
        seen = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            self.seen.append((function.overloadpacket.__name__, result.dtype, tuple(result.shape)))
            return result

    torch.manual_seed(0)
    weight = torch.randn(4, 4, requires_grad=True)
    x = torch.randn(2, 4)
    with Everything() as mode:
        with torch.autocast("cpu", DTYPES[low]):
            loss = torch.nn.functional.linear(torch.nn.functional.linear(x, weight), weight).float().sum()
        forward = list(mode.seen)
        loss.backward()
    casts = [entry for entry in forward if entry[0] == "_to_copy" and entry[2] == (4, 4)]
    assert casts == [("_to_copy", DTYPES[low], (4, 4))]
    of_weight = [
        entry[:2] for entry in mode.seen[len(forward) :] if entry[2] == (4, 4) and entry[0] in ("add", "_to_copy")
    ]
    assert of_weight == [("add", DTYPES[low]), ("_to_copy", torch.float32)]
    assert weight.grad.dtype == torch.float32
