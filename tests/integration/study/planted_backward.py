"""Builders of cases whose fault is in the backward pass or in its loss scale."""

import numpy as np
import planted_models as models
import planted_modules as modules
import torch
from planted_case import LANE, Plant, Redraw, replay, scaled_loss

HALF_LEAST = 2.0**-25  # FP16: half of the least subnormal number; what is smaller rounds to 0


def thin_gradient(scene):
    """Between a random layer and the division after it values are c times as large, gradients 1 / c as large.
    Returns (layers, words, the gradient there in FP32 with loss factor 1)."""
    model = scene.model()
    path = scene.pick(p for p in model.points if "ln" not in p and "norm" not in p and "bns" not in p)
    shape, largest, gradient = scene.look(path)
    c = min(2e4 / largest, 1e4)
    models.scale_layer(model, path, c)
    models.insert(model, path, modules.Gain(1 / c))
    # The division's gradient is the first that vanishes; the layer before it turns that into nothing.
    words = f"{path}: values {c:.3g} times as large, gradients as much smaller"
    return {f"{path}.plant", f"{path}.inner"}, words, gradient / c


def scaler_text(scene):
    """A lane with too small a loss scale: (policy text, the scale)."""
    kind = scene.pick(["none", "static", "static-unchecked"])
    if kind == "none":
        return 'extends = "torch-autocast-fp16:2.12"\n[loss_scale]\nkind = "none"\n', 1.0
    scale = float(scene.pick([8, 128, 1024]))
    return f'extends = "torch-autocast-fp16:2.12"\n[loss_scale]\nkind = "{kind}"\ninit_scale = {scale}\n', scale


def first_lossy(raw, step, share):
    """The first site of the backward pass, in order, that loses this share of its energy to zero."""
    lost = raw.lost_energy()[step]
    for s in raw.order:
        if raw.scaled[s] and lost[s] >= share and raw["counts/to_zero"][step, s] > 0:
            return int(s)
    return None


def gradient_loss(kind, share, most, target):
    """Builder: of the gradient at a random layer, `share` to `most` of the energy is rounded to zero; the loss is
    multiplied so that the gradient's rms (all of it: its largest element) falls to target * 2^-25."""

    def build(scene):
        drawn = scene.draw(size=32)
        layers, words, gradient = thin_gradient(scene)
        text, scale = scaler_text(scene)
        level = float(gradient.abs().max()) if share == 1 else float(gradient.pow(2).mean().sqrt())
        factor = 2.0 ** np.floor(np.log2(target(scene) * HALF_LEAST / (level * scale)))
        policy = scene.policy(text)
        capture = scene.capture(scene.optimizer("adam", 1e-3), scaled_loss(factor))

        def fires(raw):
            if raw.first_bad() is not None:
                return "something overflows"
            site = first_lossy(raw, 0, 0.2 if share < 1 else 0.999)
            if site is None:
                return "no gradient loses so much"
            if raw.layer[site] not in layers:
                return f"the first loss is at {raw.site(site)}"
            lost = raw.lost_energy()[0, site]
            return "" if share <= lost <= most else f"{lost:.2g} of the energy is lost"

        words_all = f"{words}; the loss times {factor:.3g}, loss scale {scale:g}"
        return Plant(
            kind,
            f"{drawn.name}: {drawn.about}",
            words_all,
            layers,
            replay(capture, [policy]),
            LANE,
            fires,
            kinds=f"{kind}, no scale" if scale == 1 else "",
        )

    return build


gradient_underflow = gradient_loss("gradient underflow", 0.3, 0.97, lambda scene: scene.between(0.4, 0.9))
gradient_vanished = gradient_loss("gradient vanished", 1, 1, lambda scene: scene.between(0.02, 0.4))


def small_everywhere(scene):
    """All gradients are too small for the lane's scale. The right layer is the first that gets nothing."""
    drawn = scene.draw(size=32)
    path = scene.pick(scene.model().points)
    text, scale = scaler_text(scene)
    level = float(scene.look(path)[2].abs().max())
    factor = 2.0 ** np.floor(np.log2(scene.between(0.01, 0.3) * HALF_LEAST / (level * scale)))
    policy = scene.policy(text)
    capture = scene.capture(scene.optimizer("adam", 1e-3), scaled_loss(factor))
    layers = set()

    def fires(raw):
        if raw.first_bad() is not None:
            return "something overflows"
        site = first_lossy(raw, 0, 0.9999)
        if site is None:
            return "no gradient vanishes"
        layers.add(raw.layer[site])
        return ""

    return Plant(
        "gradient vanished",
        f"{drawn.name}: {drawn.about}",
        f"the loss times {factor:.3g}, loss scale {scale:g}: all gradients are small",
        layers,
        replay(capture, [policy]),
        LANE,
        fires,
        kinds="gradient vanished, no scale" if scale == 1 else "",
    )


def no_grad_scaler(scene):
    """A captured loop under FP16 autocast whose author forgot the scaler, and whose gradients vanish."""
    drawn = scene.draw(names=("mlp", "conv", "transformer"), size=32)
    if scene.chance():
        layers, words, gradient = thin_gradient(scene)
    else:
        path = scene.pick(scene.model().points)
        layers, words, gradient = None, "all gradients are small", scene.look(path)[2]
    level = float(gradient.pow(2).mean().sqrt())
    factor = 2.0 ** np.floor(np.log2(scene.between(0.05, 0.5) * HALF_LEAST / level))
    capture = scene.capture(scene.optimizer("adam", 1e-3), scaled_loss(factor), amp="fp16")

    def fires(raw):
        if raw.first_bad() is not None:
            return "something overflows"
        if (raw["loss_scale/scale"][: raw.lived()] != 1).any():
            return "the lane has a loss scale"
        site = first_lossy(raw, 0, 0.3)
        if site is None:
            return "no gradient loses so much"
        return "" if layers is None or raw.layer[site] in layers else f"the first loss is at {raw.site(site)}"

    return Plant(
        "no GradScaler",
        f"{drawn.name}: {drawn.about}",
        f"FP16 autocast without a scaler, the loss times {factor:.3g}; {words}",
        layers,
        replay(capture, ["torch-autocast-fp16"]),
        "torch-autocast-fp16",
        fires,
    )


def scale_collapse(scene):
    """A layer whose gradients are far larger than all others forces halving after halving."""
    drawn = scene.draw()
    model = scene.model()
    path = scene.pick(p for p in model.points if "ln" not in p and "norm" not in p and "bns" not in p)
    gradient = float(scene.look(path)[2].abs().max())
    # 65504 / (gradient boost) = the scale that fits: 2^3 .. 2^-6 instead of 2^16.
    fits = 2.0 ** -int(scene.rng.integers(-3, 7))
    boost = 65504 / (fits * gradient)
    k = float(np.sqrt(boost))
    if k * scene.look(path)[1] > 3e4:
        raise Redraw("the amplifier would overflow in the forward pass")
    plant = torch.nn.Sequential(modules.Amplifier(k), modules.Amplifier(k))
    where = models.insert(model, path, plant)
    layers = {f"{where}.0", f"{where}.1"}
    capture = scene.capture(scene.optimizer("adam", 1e-3))
    steps = 36

    def fires(raw):
        if not raw.reference_is_finite():
            return "the reference is not finite"
        skipped = raw["loss_scale/skipped"][: raw.lived()].ravel()
        if skipped.sum() < 11:
            return f"{skipped.sum()} steps are skipped"
        culprits = {raw.layer[s] for s in raw["loss_scale/culprit_site"].ravel() if s >= 0}
        return "" if culprits <= layers else f"the overflows are at {sorted(culprits)}"

    return Plant(
        "scale collapse",
        f"{drawn.name}: {drawn.about}",
        f"{where}: gradients {boost:.3g} times as large; a scale of {fits:g} fits",
        layers,
        replay(capture, ["torch-autocast-fp16"], steps),
        "torch-autocast-fp16",
        fires,
    )


def scale_below_one(scene):
    """A loss in the millions: the scaler itself lowers its scale below 1."""
    drawn = scene.draw()
    factor = scene.between(2e6, 2e8)
    capture = scene.capture(scene.optimizer("adam", 1e-3), scaled_loss(factor))

    def fires(raw):
        if not raw.reference_is_finite():
            return "the reference is not finite"
        scale = raw["loss_scale/scale"][: raw.lived()].ravel()
        return "" if scale[-1] < 1 and raw["loss"][0] > 1e6 else f"the scale ends at {scale[-1]:g}"

    return Plant(
        "scale below one",
        f"{drawn.name}: {drawn.about}",
        f"the loss times {factor:.3g}",
        None,
        replay(capture, ["torch-autocast-fp16"], 36),
        "torch-autocast-fp16",
        fires,
    )
