"""Twenty steps of every optimizer on the same gradients as torch.optim, FP32 and FP64, and learning
rates against torch.optim.lr_scheduler. Lion, which torch lacks, against its published formula in
NumPy FP64.

Bounds, element by element, with u the unit roundoff (FP32 2^-24, FP64 2^-53):
    state      |delta| <= 16 u max_t |s_t| + decay P way: of the largest that this element's state ever was
    parameter  |delta| <= 16 u (max_t |w_t| + way) + P way, way = sum_t |w_t - w_(t-1)|
P is for Adam's 1 - beta2^t, which turns an ulp of the power (FP64 in both programs, exact at t = 1) into
P = 2^-53 / (1 - beta2^2) of an update. FP16 and BF16 parameters: every bit. Rates to 1e-14 of the
largest.
"""

import subprocess
import warnings

import numpy as np
import pytest
import torch

STEPS, COUNT, WHOLE_VECTORS = 20, 1000, 1024
U = {"fp32": 2.0**-24, "fp64": 2.0**-53}
ULPS = 16  # about one for each of the handful of operations of a step that do not average out
torch.set_num_threads(1)


def data(precision, seed=0, count=COUNT):
    rng = np.random.default_rng(seed)
    start = rng.standard_normal(count)
    gradients = rng.standard_normal((STEPS, count)) * np.exp(rng.standard_normal((STEPS, 1)))
    gradients[:, :10] = 0  # elements that never see a gradient
    if precision == "fp32":
        start, gradients = start.astype(np.float32), gradients.astype(np.float32)
    return start, gradients


def ours(binary_dir, folder, spec, schedule, precision, start, gradients, steps=STEPS, shape=None, codes=None):
    sizes = "x".join(map(str, shape or start.shape))
    start.astype("<f8").tofile(folder / "w.f64")
    gradients.astype("<f8").tofile(folder / "g.f64")
    done = subprocess.run(
        [str(binary_dir / "lockstep_optimizer_tool"), spec, schedule, precision, str(steps), str(folder), sizes]
        + [codes] * (codes is not None),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return np.fromfile(folder / "out.f64", "<f8"), np.fromfile(folder / "lr.f64", "<f8")


def length(history):
    """The way of every element through [step, element]."""
    return np.sum(np.abs(np.diff(np.asarray(history, np.float64), axis=0)), axis=0)


def check(got, history, precision, what, more=0):
    """`history`: what every step should leave, [step, element]; its last row against `got`. `more`: what
    may be off beside 16 u of the largest."""
    history = np.asarray(history, np.float64)
    bound = ULPS * U[precision] * np.max(np.abs(history), axis=0) + more
    off = np.abs(got - history[-1])
    share = np.max(off[bound > 0] / bound[bound > 0], initial=0)
    print(f"{what} off by {share:.2f} of the bound")
    assert np.all(off <= bound), f"{what}: {share:.3g} of the bound at {np.argmax(off - bound)}"


O = torch.optim  # noqa: E741
CASES = {
    "sgd:lr=0.1,momentum=0": (O.SGD, dict(lr=0.1)),
    "sgd:lr=0.1,momentum=0,weight_decay=0.1": (O.SGD, dict(lr=0.1, weight_decay=0.1)),
    "sgd:lr=0.1,momentum=0.9": (O.SGD, dict(lr=0.1, momentum=0.9)),
    "sgd:lr=0.1,momentum=0.9,dampening=0.3,weight_decay=0.01": (
        O.SGD,
        dict(lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.01),
    ),
    "sgd:lr=0.1,momentum=0.9,nesterov=1,weight_decay=0.01": (
        O.SGD,
        dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    ),
    "adam:lr=0.01": (O.Adam, dict(lr=0.01)),
    "adam:lr=0.01,beta1=0.3,beta2=0.9,eps=1e-3": (O.Adam, dict(lr=0.01, betas=(0.3, 0.9), eps=1e-3)),
    "adam:lr=0.01,weight_decay=0.1": (O.Adam, dict(lr=0.01, weight_decay=0.1)),
    "adam:lr=0.01,weight_decay=0.1,amsgrad=1,beta2=0.9": (
        O.Adam,
        dict(lr=0.01, weight_decay=0.1, amsgrad=True, betas=(0.9, 0.9)),
    ),
    "adam:lr=0.01,weight_decay=0.1,decoupled_weight_decay=1": (
        O.Adam,
        dict(lr=0.01, weight_decay=0.1, decoupled_weight_decay=True),
    ),
    "adamw:lr=0.01": (O.AdamW, dict(lr=0.01)),
    "adamw:lr=0.01,weight_decay=0.3,amsgrad=1,beta2=0.9": (
        O.AdamW,
        dict(lr=0.01, weight_decay=0.3, amsgrad=True, betas=(0.9, 0.9)),
    ),
    "adagrad:lr=0.1": (O.Adagrad, dict(lr=0.1)),
    "adagrad:lr=0.1,lr_decay=0.1,eps=1e-3,initial_accumulator_value=0.5,weight_decay=0.1": (
        O.Adagrad,
        dict(lr=0.1, lr_decay=0.1, eps=1e-3, initial_accumulator_value=0.5, weight_decay=0.1),
    ),
    "rmsprop:lr=0.01": (O.RMSprop, dict(lr=0.01)),
    "rmsprop:lr=0.01,centered=1,eps=1e-3": (O.RMSprop, dict(lr=0.01, centered=True, eps=1e-3)),
    "rmsprop:lr=0.01,momentum=0.9": (O.RMSprop, dict(lr=0.01, momentum=0.9)),
    "rmsprop:lr=0.01,alpha=0.9,momentum=0.5,centered=1,eps=1e-3,weight_decay=0.1": (
        O.RMSprop,
        dict(lr=0.01, alpha=0.9, momentum=0.5, centered=True, eps=1e-3, weight_decay=0.1),
    ),
}


TORCH_NAMES = {"max_exp_avg_sqs": "max_exp_avg_sq"}  # where ours has another


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("spec", CASES)
def test_parameters_and_states_equal_torch(binary_dir, tmp_path, spec, precision):
    start, gradients = data(precision)
    make, options = CASES[spec]
    parameter = torch.nn.Parameter(torch.tensor(start))
    optimizer = make([parameter], **options)
    way, states = [start], {}
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        way.append(parameter.detach().numpy().copy())
        for name, value in optimizer.state[parameter].items():
            if name == "step":
                steps = int(value)
            elif value is not None:
                states.setdefault(TORCH_NAMES.get(name, name), []).append(value.numpy().copy())
    if "step" in optimizer.state[parameter]:
        assert steps == STEPS  # ours is the number of gradients
    got, _ = ours(binary_dir, tmp_path, spec, "constant", precision, start, gradients)
    beta2 = options.get("betas", (0.9, 0.999))[1]
    power = U["fp64"] / (1 - beta2**2) if spec.startswith("adam") else 0
    check(got, way, precision, "parameters", (ULPS * U[precision] + power) * length(way))
    written = {path.name[len("state_") : -len(".f64")] for path in tmp_path.glob("state_*")}
    assert written == set(states)
    for name, history in states.items():
        check(
            np.fromfile(tmp_path / f"state_{name}.f64", "<f8"),
            history,
            precision,
            name,
            options.get("weight_decay", 0) * power * length(way),
        )


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("spec", CASES)
def test_16_bit_parameters_equal_torch_bit_for_bit(binary_dir, tmp_path, spec, precision):
    """torch's ops on 16-bit tensors: FP32 inside each, one rounding at its end.

    The count is a multiple of every vector width: torch's add(alpha) rounds the product of the last
    elements, which do not fill a vector, once more.
    """
    start, gradients = data("fp64", count=WHOLE_VECTORS)
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    start, gradients = torch.tensor(start).to(dtype), torch.tensor(gradients).to(dtype)
    make, options = CASES[spec]
    parameter = torch.nn.Parameter(start.clone())
    optimizer = make([parameter], foreach=False, **options)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    got, _ = ours(binary_dir, tmp_path, spec, "constant", precision, start.double().numpy(), gradients.double().numpy())
    want = parameter.detach().double().numpy()
    finite = np.isfinite(want)
    print(
        f"{WHOLE_VECTORS} weights after {STEPS} steps, {np.count_nonzero(want != start.double().numpy())} "
        f"moved, {np.count_nonzero(~finite)} not finite"
    )
    assert np.array_equal(got, want, equal_nan=True)
    assert np.count_nonzero(want[finite] != start.double().numpy()[finite]) > WHOLE_VECTORS // 2


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_lion_follows_its_paper(binary_dir, tmp_path, precision):
    start, gradients = data(precision)
    lr, beta1, beta2, decay = 0.01, 0.9, 0.99, 0.1
    w, m = start.astype(np.float64), np.zeros(COUNT)
    way, averages = [w.copy()], []
    for g in gradients.astype(np.float64):
        update = np.sign(beta1 * m + (1 - beta1) * g)
        w -= lr * (update + decay * w)
        m = beta2 * m + (1 - beta2) * g
        way.append(w.copy())
        averages.append(m)
    got, _ = ours(
        binary_dir,
        tmp_path,
        f"lion:lr={lr},beta1={beta1},beta2={beta2},weight_decay={decay}",
        "constant",
        precision,
        start,
        gradients,
    )
    check(got, way, precision, "parameters", ULPS * U[precision] * length(way))
    check(np.fromfile(tmp_path / "state_exp_avg.f64", "<f8"), averages, precision, "exp_avg")


MUON_STEPS = 100
# One Newton-Schulz step enlarges an error by at most its coefficient a: five of them by 485.
MUON_GAIN = 3.4445**5


@pytest.mark.parametrize("rows,columns", [(24, 40), (40, 24), (16, 16)])
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize(
    "options", [{}, {"nesterov": False, "adjust_lr_fn": "match_rms_adamw"}], ids=["original", "match-rms"]
)
def test_muon_without_bf16_equals_torch(binary_dir, tmp_path, monkeypatch, rows, columns, precision, options):
    """A hundred steps of torch's own code, whose cast to BF16 is left out."""
    if not hasattr(O, "Muon"):
        pytest.skip("this PyTorch has no Muon")
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    weights, history, spec, start, gradients = muon(rows, columns, precision, options)
    got, _ = ours(binary_dir, tmp_path, spec + ",ns_bf16=0", "constant", precision, start, gradients, MUON_STEPS)
    # Every step: some dozen roundings an element and sums of as many terms as the longer side.
    bound = MUON_GAIN * max(rows, columns) * U[precision] * length(history)
    off = np.abs(got - weights)
    print(f"off by {np.max(off / bound):.2g} of the bound, {np.max(off):.2g}; way {np.mean(length(history)):.3g}")
    assert np.all(off <= bound)


@pytest.mark.parametrize("rows,columns", [(24, 40), (40, 24)])
def test_muon_in_bf16_is_as_near_to_torch_as_bf16_is_to_fp64(binary_dir, tmp_path, monkeypatch, rows, columns):
    """torch sums its BF16 products in another order: no bits, but no farther than torch's BF16 is from its FP64."""
    if not hasattr(O, "Muon"):
        pytest.skip("this PyTorch has no Muon")
    weights, _, spec, start, gradients = muon(rows, columns, "fp32", {})
    got, _ = ours(binary_dir, tmp_path, spec, "constant", "fp32", start, gradients, MUON_STEPS)
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    exact, *_ = muon(rows, columns, "fp64", {})
    ours_off, theirs_off, apart = (np.linalg.norm(a - b) for a, b in ((got, exact), (weights, exact), (got, weights)))
    print(f"from fp64: ours {ours_off:.3g}, torch {theirs_off:.3g}; from torch {apart:.3g}")
    assert 0 < apart < 2 * theirs_off and ours_off < 2 * theirs_off


def muon(rows, columns, precision, options):
    start, gradients = (x.astype(np.float64) for x in data("fp64", count=rows * columns))
    gradients = np.concatenate([gradients * (1 + 0.1 * k) for k in range(MUON_STEPS // STEPS)])
    dtype = {"fp32": np.float32, "fp64": np.float64}[precision]
    start, gradients = start.reshape(rows, columns).astype(dtype), gradients.astype(dtype)
    parameter = torch.nn.Parameter(torch.tensor(start))
    optimizer = O.Muon([parameter], lr=0.02, **options)
    history = [start.ravel()]
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient).reshape(rows, columns)
        optimizer.step()
        history.append(parameter.detach().numpy().ravel().copy())
    spec = "muon:lr=0.02"
    if options:
        spec += ",nesterov=0,match_rms_adamw=1"
    return history[-1].astype(np.float64), history, spec, start, gradients


FACTORED_STEPS = 100
# Roundings of a weight in a step, of both programs, half an ulp each: decay and update.
WEIGHT_ROUNDINGS = 2


def of_transformers():
    pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers.optimization import Adafactor

    return Adafactor


FACTORED = {
    "adafactor:lr=0.01": (lambda: O.Adafactor, {"lr": 0.01}),
    "adafactor:lr=0.3,beta2_decay=-0.5,eps1=1e-3,eps2=0.1,d=2,weight_decay=0.1": (
        lambda: O.Adafactor,
        {"lr": 0.3, "beta2_decay": -0.5, "eps": (1e-3, 0.1), "d": 2.0, "weight_decay": 0.1},
    ),
    "adafactor-transformers:": (of_transformers, {}),
    "adafactor-transformers:warmup_init=1,weight_decay=0.1": (
        of_transformers,
        {"warmup_init": True, "weight_decay": 0.1},
    ),
    "adafactor-transformers:lr=0.02,relative_step=0,scale_parameter=0,beta1=0.9,weight_decay=0.1": (
        of_transformers,
        {"lr": 0.02, "relative_step": False, "scale_parameter": False, "beta1": 0.9, "weight_decay": 0.1},
    ),
    "adafactor-transformers:lr=0.1,relative_step=0,clip_threshold=0.5,eps1=1e-4,eps2=0.3,decay_rate=-0.6": (
        of_transformers,
        {"lr": 0.1, "relative_step": False, "clip_threshold": 0.5, "eps": (1e-4, 0.3), "decay_rate": -0.6},
    ),
}


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("shape", [(24, 40), (1000,), (3, 8, 20), (4, 5, 3, 3)])
@pytest.mark.parametrize("spec", FACTORED)
def test_adafactor_equals_its_package(binary_dir, tmp_path, spec, shape, precision):
    """Weights and every state after a hundred steps: matrices, vectors, stacks of matrices."""
    make, options = FACTORED[spec]
    kind = make()
    # That of an FP32 weight is ours in FP64, too.
    own = f",eps1={torch.finfo(torch.float64).eps}" if options == {"lr": 0.01} and precision == "fp64" else ""
    start, gradients = data(precision, count=int(np.prod(shape)))
    start = start.reshape(shape)
    gradients = np.concatenate([gradients * gradients.dtype.type(1 + 0.1 * k) for k in range(FACTORED_STEPS // STEPS)])
    parameter = torch.nn.Parameter(torch.tensor(start))
    optimizer = kind([parameter], **options)
    history, states = [start.ravel()], {}
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient).reshape(shape)
        optimizer.step()
        history.append(parameter.detach().numpy().ravel().copy())
        for name, value in optimizer.state[parameter].items():
            if name not in ("step", "RMS"):
                states.setdefault(name, []).append(value.numpy().ravel().copy())
    text = (spec + own).replace(":,", ":").rstrip(":")
    got, _ = ours(binary_dir, tmp_path, text, "constant", precision, start, gradients, FACTORED_STEPS)
    # Direction and length of a step come from sums of at most all terms, and from a dozen operations.
    more = (start.size + ULPS) * U[precision] * length(history)
    more += FACTORED_STEPS * WEIGHT_ROUNDINGS * U[precision] * np.max(np.abs(history), axis=0)
    check(got, history, precision, "parameters", more)
    assert {path.stem.removeprefix("state_") for path in tmp_path.glob("state_*")} == set(states)
    for name, values in states.items():
        sums = start.size * U[precision] * np.max(np.abs(values), axis=0)
        check(np.fromfile(tmp_path / f"state_{name}.f64", "<f8"), values, precision, name, sums)


STATES = {"dynamic8": ("8bit", 256), "dynamic4": ("4bit", 128), "fp8_e4m3": ("fp8", 256)}


@pytest.mark.parametrize("kind", ["signed", "unsigned"])
@pytest.mark.parametrize("codes", STATES)
def test_states_in_codes_equal_torchao_s(binary_dir, tmp_path, codes, kind):
    """A million values of many sizes, with zeros, ties, blocks of zeros and of tiny values, bit for bit."""
    pytest.importorskip("torchao.optim", reason="torchao is not installed")
    from torchao.optim import subclass_4bit, subclass_8bit, subclass_fp8

    width, block = STATES[codes]
    rng = np.random.default_rng(1)
    values = (rng.standard_normal(2**20) * np.exp(4 * rng.standard_normal(2**20))).astype(np.float32)
    values[: 16 * block] *= np.repeat(np.float32(10.0) ** np.arange(-45, -29, dtype=np.float32), block)
    values[16 * block : 17 * block] = 0
    values[20 * block : 40 * block : 3] = 0
    if width != "fp8":
        module = subclass_8bit if width == "8bit" else subclass_4bit
        levels = np.sort(np.array(module.get_qmap_signed() if kind == "signed" else module.get_qmap_unsigned(), "f4"))
        ties = ((levels[1:] + levels[:-1]) / 2).astype(np.float32)[: block - 1]
        values[50 * block : 50 * block + len(ties)], values[51 * block - 1] = ties, 1  # a scale of 1
    if kind == "unsigned":
        values = np.abs(values)
    made = {
        "8bit": lambda: subclass_8bit.OptimState8bit.zeros(values.shape, kind == "signed", block),
        "4bit": lambda: subclass_4bit.OptimState4bit.zeros(values.shape, kind == "signed", block),
        "fp8": lambda: subclass_fp8.OptimStateFp8.zeros(values.shape, block),
    }[width]()
    made.copy_(torch.tensor(values))
    values.astype("<f8").tofile(tmp_path / "w.f64")
    subprocess.run(
        [str(binary_dir / "lockstep_optimizer_tool"), codes, kind, str(tmp_path)], check=True, capture_output=True
    )
    got = np.fromfile(tmp_path / "out.f64", "<f8").astype(np.float32)
    np.testing.assert_array_equal(got, made.dequantize().numpy())


@pytest.mark.parametrize("kind", ["signed", "unsigned"])
def test_states_in_codes_equal_those_of_bitsandbytes_on_the_cpu(binary_dir, tmp_path, kind):
    """A million values of many sizes, blocks of zeros and of tiny values, a shorter last block, bit for bit."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    from bitsandbytes.functional import create_dynamic_map

    rng, block, rest = np.random.default_rng(1), 256, 77
    values = (rng.standard_normal(2**20 + rest) * np.exp(4 * rng.standard_normal(2**20 + rest))).astype(np.float32)
    values[: 16 * block] *= np.repeat(np.float32(10.0) ** np.arange(-36, -20, dtype=np.float32), block)
    values[16 * block : 17 * block] = 0
    values[20 * block : 40 * block : 3] = 0
    levels = create_dynamic_map(signed=kind == "signed")
    ties = ((levels[1:] + levels[:-1]) / 2).numpy()
    values[50 * block : 50 * block + len(ties)], values[51 * block - 1] = ties, 1  # a scale of 1
    if kind == "unsigned":
        values = np.abs(values)
    codes, scales = torch.ops.bitsandbytes.quantize_blockwise(torch.tensor(values), levels, block)
    want = torch.ops.bitsandbytes.dequantize_blockwise(codes, scales, levels, block, torch.float32).numpy()
    values.astype("<f8").tofile(tmp_path / "w.f64")
    tool = str(binary_dir / "lockstep_optimizer_tool")
    subprocess.run([tool, "dynamic8_bitsandbytes_cpu", kind, str(tmp_path)], check=True, capture_output=True)
    got = np.fromfile(tmp_path / "out.f64", "<f8").astype(np.float32)
    np.testing.assert_array_equal(got, want)
    scaled = values / np.repeat(scales.numpy(), block)[: len(values)].clip(1e-38)
    assert np.mean(codes.numpy() != np.searchsorted(ties, scaled)) > 0.01  # the table is not the nearest level


CODED_STEPS, CODED = 100, 8192  # values of a weight: at least 4096 have codes
# A block's scale carries the roundings of all steps: values of the same code agree to 16 u a step. One on the other
# side of a midpoint between two levels is a level off, percents: a few of 8192 are in 100 steps.
SAME_CODE = CODED_STEPS * ULPS * U["fp32"]
SAME_STATES, SAME_WAY = 0.999, 0.005


@pytest.mark.parametrize(
    "codes,optimizer", [("dynamic8", "AdamW8bit"), ("dynamic4", "AdamW4bit"), ("fp8_e4m3", "AdamWFp8")]
)
def test_adam_with_states_in_codes_follows_torchao(binary_dir, tmp_path, monkeypatch, codes, optimizer):
    """A hundred steps of torchao's own optimizer, not compiled, in FP32. Weights: as a share of what the codes change."""
    optim = pytest.importorskip("torchao.optim", reason="torchao is not installed")
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    start, gradients = data("fp32", count=CODED)
    gradients = np.concatenate([gradients * np.float32(1 + k) for k in range(CODED_STEPS // STEPS)])

    def trained(make):
        parameter = torch.nn.Parameter(torch.tensor(start))
        made = make([parameter], lr=0.01, weight_decay=0.1)
        for gradient in gradients:
            parameter.grad = torch.tensor(gradient)
            made.step()
        return parameter.detach().numpy(), made.state[parameter]

    (coded, states), (plain, _) = trained(getattr(optim, optimizer)), trained(O.AdamW)
    spec = "adamw:lr=0.01,weight_decay=0.1"
    got, _ = ours(binary_dir, tmp_path, spec, "constant", "fp32", start, gradients, CODED_STEPS, codes=codes)
    same = {}
    for name in ("exp_avg", "exp_avg_sq"):
        mine = np.fromfile(tmp_path / f"state_{name}.f64", "<f8").astype(np.float32)
        theirs = states[name].dequantize().numpy()
        same[name] = np.mean(np.abs(mine - theirs) <= SAME_CODE * np.abs(theirs))
    apart, way = np.linalg.norm(got - coded), np.linalg.norm(coded - plain)
    print(f"{codes}: equal states {same}; weights {apart:.3g} apart, {way:.3g} from AdamW in FP32")
    assert min(same.values()) >= SAME_STATES and way > 0 and apart <= SAME_WAY * way


@pytest.mark.parametrize("optimizer,decay", [("Adam8bit", 0), ("AdamW8bit", 0.1)])
def test_adam_with_states_in_codes_follows_bitsandbytes(binary_dir, tmp_path, optimizer, decay):
    """A hundred steps of bitsandbytes' own optimizer on the CPU. Weights: as a share of what the codes change."""
    bitsandbytes = pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    start, gradients = data("fp32", count=CODED)
    gradients = np.concatenate([gradients * np.float32(1 + k) for k in range(CODED_STEPS // STEPS)])

    def trained(make):
        parameter = torch.nn.Parameter(torch.tensor(start))
        made = make([parameter], lr=0.01, weight_decay=decay)
        for gradient in gradients:
            parameter.grad = torch.tensor(gradient)
            made.step()
        return parameter.detach().numpy()

    coded, plain = trained(getattr(bitsandbytes.optim, optimizer)), trained(O.AdamW)
    spec = f"adamw:lr=0.01,weight_decay={decay}"
    codes = "dynamic8_bitsandbytes_cpu"
    got, _ = ours(binary_dir, tmp_path, spec, "constant", "fp32", start, gradients, CODED_STEPS, codes=codes)
    apart, way = np.linalg.norm(got - coded), np.linalg.norm(coded - plain)
    print(f"{optimizer}: weights {apart:.3g} apart, {way:.3g} from AdamW in FP32")
    assert way > 0 and apart <= SAME_WAY * way


S = torch.optim.lr_scheduler
T = 40
SCHEDULES = {
    "constant": lambda o: S.ConstantLR(o, 1.0, 0),
    "step:step_size=7,gamma=0.3": lambda o: S.StepLR(o, 7, 0.3),
    "exponential:gamma=0.93": lambda o: S.ExponentialLR(o, 0.93),
    f"cosine:steps={T},eta_min=0.01": lambda o: S.CosineAnnealingLR(o, T, 0.01),
    "cosine": lambda o: S.CosineAnnealingLR(o, T),
    "linear:steps=30,start_factor=0.5,end_factor=0.1": lambda o: S.LinearLR(o, 0.5, 0.1, 30),
    "polynomial:steps=30,power=2": lambda o: S.PolynomialLR(o, 30, 2.0),
    "polynomial:steps=30,power=0.7": lambda o: S.PolynomialLR(o, 30, 0.7),
    f"cosine:steps={T},warmup=10,warmup_factor=0.1": lambda o: S.SequentialLR(
        o, [S.LinearLR(o, 0.1, 1.0, 10), S.CosineAnnealingLR(o, T - 10)], [10]
    ),
    "linear:steps=30,warmup=5,warmup_factor=0.2": lambda o: S.SequentialLR(
        o, [S.LinearLR(o, 0.2, 1.0, 5), S.LinearLR(o, 1.0, 0.0, 25)], [5]
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rates_equal_torch(binary_dir, tmp_path, schedule):
    base = 0.3
    optimizer = O.SGD([torch.nn.Parameter(torch.zeros(1))], lr=base)
    scheduler = SCHEDULES[schedule](optimizer)
    want = []
    with warnings.catch_warnings():  # torch's SequentialLR uses what torch deprecates
        warnings.simplefilter("ignore")
        for _ in range(T):
            want.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
    _, got = ours(binary_dir, tmp_path, f"sgd:lr={base}", schedule, "fp64", np.zeros(1), np.zeros((T, 1)), T)
    assert np.max(np.abs(got - np.array(want))) <= 1e-14 * base
