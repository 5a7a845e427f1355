"""Builders of cases whose fault is in the forward pass. Each takes a Scene and returns a Plant, or raises Redraw."""

import numpy as np
import planted_models as models
import planted_modules as modules
import torch
from planted_case import (
    AUTOCAST_NO_SCALE,
    BF16_MASTERS,
    HALF,
    HALF_MASTERS,
    LANE,
    STATIC,
    Plant,
    Redraw,
    first_overflow_is_at,
    replay,
    scaled_loss,
)

FP16_MAX = 65504.0
STORED = ("weight", "buffer", "input")  # roles of what is kept in storage


def insert(scene, plant, path=None):
    """Puts the module `plant(features)` after a random point; (its path, the point)."""
    path = path or scene.pick(scene.model().points)
    made = plant(scene.features(path))
    return models.insert(scene.model(), path, made), path


def overflowing(scene):
    """Makes a random layer overflow in FP16. Returns (layers, words)."""
    model = scene.model()
    options = ["layer", "layer", "square", "exp"] + ["scores"] * (2 * hasattr(model, "attention"))
    how = scene.pick(options)
    if how == "layer":
        # Weights times c, the result divided by c: the result overflows, the weights do not.
        path = scene.pick(p for p in model.points if "ln" not in p and "norm" not in p and "bns" not in p)
        largest = scene.look(path)[1]
        c = FP16_MAX * scene.between(1.5, 4) / largest
        if c * float(model.get_submodule(path).weight.detach().abs().max()) > 0.8 * FP16_MAX:
            raise Redraw("the weights would overflow, too")
        models.scale_layer(model, path, c)
        models.insert(model, path, modules.Gain(1 / c))
        return {f"{path}.inner"}, f"{path}: weights and bias times {c:.3g}, the result divided by it"
    if how == "scores":
        block = scene.pick(model.attention)
        c = scene.between(300, 1500)
        models.scale_layer(model, f"{block}.q", c)
        models.scale_layer(model, f"{block}.k", c)
        return {block}, f"{block}: q and k times {c:.3g}, their product overflows"
    if how == "square":
        path, point = insert(scene, lambda n: modules.HandNorm(scene.between(500, 2000)))
        return {path}, f"{path}: an RMS norm by hand squares large values"
    shift = scene.between(11.7, 14)
    path, point = insert(scene, lambda n: modules.Exponential(shift, float(np.exp(-shift))))
    return {path}, f"{path}: exp({shift:.1f} - |x|)"


def forward_overflow(scene):
    drawn = scene.draw()
    layers, words = overflowing(scene)
    policy = scene.policy(scene.pick([AUTOCAST_NO_SCALE, HALF, HALF_MASTERS, STATIC]))
    path = scene.capture()
    return Plant(
        "forward overflow",
        f"{drawn.name}: {drawn.about}",
        words,
        layers,
        replay(path, [policy]),
        LANE,
        first_overflow_is_at(layers, "output"),
    )


def overflow_in_one_batch(scene):
    """An RMS norm by hand that fits until one batch with values some 30 times as large."""
    drawn = scene.draw(names=("mlp", "rnn"))
    if drawn.model.after_norm:
        raise Redraw("a layer_norm would take the large batch back")
    path = scene.pick(["inp"] if drawn.name == "rnn" else drawn.model.points)
    gain = 100 / scene.look(path)[1]
    where, point = insert(scene, lambda n: modules.HandNorm(gain), path)
    step, factor = int(scene.rng.integers(1, len(drawn.batches))), scene.between(12, 60)
    drawn.batches[step] = (drawn.batches[step][0] * factor, drawn.batches[step][1])
    policy = scene.policy(scene.pick([AUTOCAST_NO_SCALE, HALF, HALF_MASTERS]))
    capture = scene.capture()
    overflow = first_overflow_is_at({where}, "output")

    def fires(raw):
        return overflow(raw) or ("" if raw.first_bad()[0] == step else "it overflows in another step")

    return Plant(
        "forward overflow",
        f"{drawn.name}: {drawn.about}",
        f"{where}: an RMS norm by hand; the batch of step {step} is {factor:.0f} times as large",
        {where},
        replay(capture, [policy]),
        LANE,
        fires,
    )


def all_skipped(scene):
    drawn = scene.draw(count=12)
    layers, words = overflowing(scene)
    path = scene.capture()
    overflow = first_overflow_is_at(layers)

    def fires(raw):
        return overflow(raw) or ("" if raw["loss_scale/skipped"].all() else "some steps are not skipped")

    return Plant(
        "every step skipped",
        f"{drawn.name}: {drawn.about}",
        words,
        layers,
        replay(path, ["torch-autocast-fp16"]),
        "torch-autocast-fp16",
        fires,
    )


def sum_overflow(scene):
    mean = scene.chance()
    drawn = scene.draw(names=("mlp", "transformer", "rnn"))
    base = FP16_MAX * scene.between(0.3, 0.45)
    path, point = insert(scene, (lambda n: modules.Mean(base)) if mean else (lambda n: modules.Difference(base, n)))
    sums = "[reduce]" if mean else "[gemm]"
    policy = scene.policy(scene.pick([AUTOCAST_NO_SCALE, HALF, HALF_MASTERS]) + f'\n{sums}\naccumulator = "fp16"\n')
    capture = scene.capture()
    return Plant(
        "sum overflow",
        f"{drawn.name}: {drawn.about}",
        f"{path}: {'mean' if mean else 'alternating sum'} of values near {base:.3g} with an FP16 accumulator",
        {path},
        replay(capture, [policy]),
        LANE,
        first_overflow_is_at({path}),
    )


def vanishes_at(layers, share, **keys):
    """In step 0 that share of the energy of some value of these layers is rounded to zero, and nothing overflows."""

    def fires(raw):
        if not raw.reference_is_finite():
            return "the reference is not finite"
        lost = raw.lost_energy()
        sites = [
            s for s in raw.matching(layers, **keys) if raw["counts/to_zero"][0, s] > 0.5 * raw["counts/count"][0, s]
        ]
        if not any(lost[0, s] >= share for s in sites):
            return "nothing vanishes there"
        first = raw.first_bad(0)
        return "" if first is None else f"something overflows in step 0: {raw.site(first[1])}"

    return fires


def stored(scene, overflows):
    """A buffer, weight, constant or input that FP16 storage cannot hold."""
    how = scene.pick(["buffer", "weight", "constant", "input"] + ["layer", "layer"] * overflows)
    magnitude = scene.between(1e5, 1e7) if overflows else scene.between(1e-12, 1e-8)
    drawn = scene.draw(names=("mlp", "conv", "rnn") if how == "input" else ("mlp", "conv", "transformer", "rnn"))
    if how == "input":
        layers = {"mul"}  # an op of no module goes by its own name
        drawn.model = modules.Before(drawn.model, 1 / magnitude)
        drawn.batches = [(x * magnitude, y) for x, y in drawn.batches]
        words = f"features of about {magnitude:.1e}, which the model itself divides by that"
    elif how == "layer":
        path = scene.pick(p for p in drawn.model.points if "ln" not in p and "norm" not in p and "bns" not in p)
        weights = drawn.model.get_submodule(path).weight.detach()
        magnitude = FP16_MAX * scene.between(2, 100) / float(weights.abs().max())
        models.scale_layer(drawn.model, path, magnitude)
        models.insert(drawn.model, path, modules.Gain(1 / magnitude))
        layers = {f"{path}.inner"}
        words = f"{path}: weights and bias times {magnitude:.1e}, the result divided by it"
    else:
        path, point = insert(scene, lambda n: modules.Stored(how, n, magnitude))
        layers = {path}
        words = f"{path}: a {how} of about {magnitude:.1e}"
    policy = scene.policy(scene.pick([HALF, HALF_MASTERS]))
    capture = scene.capture()
    return drawn, layers, words, replay(capture, [policy]), how


def storage_overflow(scene):
    drawn, layers, words, command, how = stored(scene, True)
    return Plant(
        "storage overflow", f"{drawn.name}: {drawn.about}", words, layers, command, LANE, stored_infinity(layers)
    )


def storage_underflow(scene):
    drawn, layers, words, command, how = stored(scene, False)

    def fires(raw):
        if not raw.reference_is_finite():
            return "the reference is not finite"
        if raw.first_bad(0) is not None:
            return "something overflows in step 0"
        # The rounding is not one of the step: all that the step reads is zero, and the reference's is not.
        read = [s for s in raw.matching(layers, point="operand") if raw.role[s] in STORED]
        gone = [s for s in read if raw["moments/sum_sq"][0, s] == 0 and raw.ref["moments/sum_sq"][0, s] > 0]
        return "" if gone else "nothing vanishes"

    return Plant("storage underflow", f"{drawn.name}: {drawn.about}", words, layers, command, LANE, fires)


def stored_infinity(layers):
    """The first value that is not finite is read from storage by one of these layers."""

    def fires(raw):
        if not raw.reference_is_finite():
            return "the reference is not finite"
        first = raw.first_bad()
        if first is None:
            return "nothing is infinite"
        step, site = first
        is_stored = raw.role[site] in STORED and raw.point[site] in ("operand", "storage")
        right = step == 0 and is_stored and raw.layer[site] in layers
        return "" if right else f"first comes {raw.site(site)}"

    return fires


def invalid(scene):
    how = scene.pick(["log p", "log rest", "eps", "root"])
    drawn = scene.draw()
    low = scene.pick([HALF, HALF_MASTERS])
    kinds = ""
    if how == "log p":
        sharp = scene.between(10, 40)
        path, point = insert(scene, lambda n: modules.LogOfProbability(sharp))
        words = f"{path}: log of a softmax that rounds to 0"
    elif how == "log rest":
        low = scene.pick([HALF, HALF_MASTERS, BF16_MASTERS, AUTOCAST_NO_SCALE])
        path, point = insert(scene, lambda n: modules.LogOfRest(scene.between(20, 60)))
        words = f"{path}: log(1 - p) where p rounds to 1"
    elif how == "root":
        low = scene.pick([HALF, HALF_MASTERS, BF16_MASTERS])
        mean = scene.between(30, 100)
        path, point = insert(scene, lambda n: modules.Variance(mean))
        words = f"{path}: the root of a variance computed as a difference of squares of about {mean:.0f}^2"
    else:
        tensor = scene.chance(0.3)
        eps = scene.pick([1e-8, 1e-9, 1e-10])
        path, point = insert(scene, lambda n: modules.ZeroRows(eps, tensor))
        words = f"{path}: 0 / (0 + {eps:g}) with {'eps a buffer' if tensor else 'eps a number'} that rounds to 0"
        kinds = "eps stored" if tensor else ""
    policy = scene.policy(low)
    capture = scene.capture()

    def fires(raw):
        if not raw.reference_is_finite():
            return "the reference is not finite"
        if np.isfinite(raw["loss"][: raw.lived()]).all():
            return "nothing is invalid, or a relu takes the infinity away: the loss stays finite"
        first = raw.first_bad()
        if first is None:
            return "no site shows it"
        if raw["counts/to_infinity"][first[0], first[1]]:
            return f"an overflow comes first: {raw.site(first[1])}"
        return "" if raw.layer[first[1]] == path else f"first comes {raw.site(first[1])}"

    return Plant(
        "invalid operation",
        f"{drawn.name}: {drawn.about}",
        words,
        {path},
        replay(capture, [policy]),
        LANE,
        fires,
        kinds=kinds,
    )


def forward_underflow(scene):
    drawn = scene.draw()
    if scene.chance():
        a = scene.between(1e-6, 3e-5)
        path, point = insert(scene, lambda n: modules.TinySquares(a))
        words = f"{path}: squares of values of about {a:.1e}"
    else:
        distance = 18 + 6 * float(scene.rng.random())
        path, point = insert(scene, lambda n: modules.TinyKernel(distance))
        words = f"{path}: exp(-{distance:.1f} - x^2)"
    policy = scene.policy(scene.pick([HALF, HALF_MASTERS]))
    capture = scene.capture()
    return Plant(
        "forward underflow",
        f"{drawn.name}: {drawn.about}",
        words,
        {path},
        replay(capture, [policy]),
        LANE,
        vanishes_at({path}, 0.9),
    )


def swamping_sum(scene):
    drawn = scene.draw()
    length = int(scene.between(2048, 6000))
    path, point = insert(scene, lambda n: modules.LongSum(n, length))
    accumulator = scene.pick(["bf16", "bf16", "fp16"])
    if accumulator == "fp16":
        length = 8192
        scene.model().get_submodule(path).__init__(scene.features(point), length)
    base = 'extends = "torch-autocast-bf16:2.12"\n'
    # Not everywhere in FP16: without a loss scale the gradients' sums would vanish, another fault.
    everywhere = accumulator == "bf16" and scene.chance()
    text = (
        f'[gemm]\naccumulator = "{accumulator}"\n'
        if everywhere
        else f'[[rule]]\nlayer = "{path}"\naccumulator = "{accumulator}"\n'
    )
    policy = scene.policy(base + text)
    capture = scene.capture()

    def fires(raw):
        sites = raw.matching({path}, point="accumulator")
        with np.errstate(all="ignore"):
            error = np.sqrt(raw["sums/err_sq"][0] / raw["sums/exact_sq"][0])
        error = np.nan_to_num(error)
        here = max([error[s] for s in sites], default=0)
        others = max([e for s, e in enumerate(error) if s not in sites], default=0)
        if here < 0.1:
            return f"the sum is only {here:.2g} wrong"
        return "" if others < here / 3 else f"another sum is {others:.2g} wrong"

    return Plant(
        "swamping in a sum",
        f"{drawn.name}: {drawn.about}",
        f"{path}: {length} like products in a {accumulator} accumulator",
        {path},
        replay(capture, [policy]),
        LANE,
        fires,
    )


def swamping_add(scene):
    drawn = scene.draw()
    low = scene.pick([HALF_MASTERS, BF16_MASTERS])
    tensor, stream = scene.chance(), scene.chance(0.4)
    offset = 2.0 ** (14 if low is HALF_MASTERS else int(scene.rng.integers(11, 15)))
    path, point = insert(scene, lambda n: modules.Stream(offset, n) if stream else modules.Offset(offset, tensor, n))
    policy = scene.policy(low)
    capture = scene.capture()

    def fires(raw):
        if not raw.reference_is_finite():
            return "the reference is not finite"
        if raw.first_bad(0) is not None:
            return "something overflows"
        # What the subtraction gives back is all that is left of x; next to the reference it is another tensor.
        outs = [s for s in raw.matching({path}, point="output") if raw.role[s] == "activation"]
        if not outs:
            return "no such site"
        outs = [s for s in outs if raw.op[s] == "sub"]
        lost = raw["moments/err_sq"][0, outs[-1]] / max(raw["moments/ref_sq"][0, outs[-1]], 1e-300) if outs else 0
        return "" if lost > 0.3 else f"only {lost:.2g} of x is lost"

    words = f"four adds to a stream of {offset:g}" if stream else f"(x + {offset:g}) - {offset:g}"
    return Plant(
        "swamping in an add",
        f"{drawn.name}: {drawn.about}",
        f"{path}: {words}",
        {path},
        replay(capture, [policy]),
        LANE,
        fires,
    )


def fp8_saturation(scene):
    how = scene.pick(["rule", "unit", "delayed"])
    if how == "delayed":
        drawn = scene.draw(names=("mlp",))
        if not drawn.model.after_norm:
            raise Redraw("without a layer_norm all layers would saturate")
        step = int(scene.rng.integers(3, len(drawn.batches)))
        factor = scene.between(8, 100)
        drawn.batches[step] = (drawn.batches[step][0] * factor, drawn.batches[step][1])
        layers, low = {"fcs.0"}, 'extends = "fp8-delayed:1"\n'
        words = f"fcs.0: the batch of step {step} is {factor:.0f} times as large as the scale's history"
    else:
        drawn = scene.draw()
        gain = scene.between(2000, 20000)
        path, point = insert(scene, lambda n: modules.WideFactor(n, gain))
        layers = {f"{path}.linear", path}
        words = f"{path}.linear: a factor of about {gain:.0f}, E4M3 ends at 448"
        low = 'extends = "torch-autocast-bf16:2.12"\n'
        if how == "rule":
            low += (
                f'[[rule]]\nlayer = "{path}.linear"\nop = "linear"\nrole = "activation"\npoint = "operand"\n'
                'format = "fp8_e4m3+saturate"\n'
            )
        else:
            low += (
                '[scaling]\nkind = "unit"\nops = ["linear"]\noperand = "fp8_e4m3+saturate"\n'
                'grad_operand = "fp8_e5m2+saturate"\n'
            )
    policy = scene.policy(low)
    if how == "unit":
        # Unit scaling wants gradients of about 1: the loss is a sum, and Adam does not mind.
        g = scene.look(point)[2]
        factor = 2.0 ** round(float(torch.log2(4 / g.abs().max())))
        capture = scene.capture(scene.optimizer("adam", 1e-3), scaled_loss(factor))
    else:
        capture = scene.capture()

    def fires(raw):
        saturated = raw["counts/saturated"][: raw.lived()]
        for t in range(raw.lived()):
            for s in raw.order:
                if saturated[t, s] > 0:
                    return "" if raw.layer[s] in layers else f"{raw.site(s)} saturates first"
        return "nothing saturates"

    return Plant(
        "saturation in FP8", f"{drawn.name}: {drawn.about}", words, layers, replay(capture, [policy]), LANE, fires
    )
