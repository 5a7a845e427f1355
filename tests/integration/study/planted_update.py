"""Builders of cases whose fault is in the weight update: lost updates, optimizer states that a format cannot hold."""

import numpy as np
from planted_case import LANE, PLAIN, Plant, replay, scaled_loss

BF16_WEIGHTS = 'extends = "torch-autocast-bf16:2.12"\n[storage]\nweight = "bf16"\n'


FP16_WEIGHTS = '[storage]\nweight = "fp16"\n'


def trained_layers(scene):
    """Module paths with a weight of their own that is trained."""
    return [
        path
        for path, module in scene.model().named_modules()
        if isinstance(getattr(module, "weight", None), type(next(scene.model().parameters())))
        and module.weight.dim() > 1
    ]


def freeze_all_but(scene, path):
    for name, parameter in scene.model().named_parameters():
        parameter.requires_grad_(name.startswith(path + "."))


def layers_of(path):
    return None if path is None else {path}


def lost_updates(scene):
    """BF16 weights without masters, and a learning rate whose updates are below half an ulp."""
    drawn = scene.draw()
    how = scene.pick(["all", "frozen", "group"])
    path = None if how == "all" else scene.pick(trained_layers(scene))
    # AdamW's decay, 1 - lr 0.01, is 1 in BF16: another fault, where the arithmetic is BF16.
    lr, name = scene.pick([(1e-6, "adam"), (1e-5, "sgd")])
    if how == "frozen":
        freeze_all_but(scene, path)
        optimizer = scene.optimizer(name, lr)
    elif how == "all":
        optimizer = scene.optimizer(name, lr)
    else:
        slow = list(scene.model().get_submodule(path).parameters())
        rest = [p for p in scene.model().parameters() if not any(p is q for q in slow)]
        optimizer = scene.optimizer("adam", 5e-3, [{"params": rest}, {"params": slow, "lr": 1e-6}])
    low = scene.pick([BF16_WEIGHTS, BF16_WEIGHTS, FP16_WEIGHTS, 'extends = "pure-bf16:1"\n'])
    policy = scene.policy(low)
    capture = scene.capture(optimizer)

    def fires(raw):
        steps = slice(0, raw.lived())
        with np.errstate(all="ignore"):
            share = raw["updates/stagnant_sq"][steps].sum(0) / raw["updates/update_sq"][steps].sum(0)
        share = np.nan_to_num(share)
        moved = [s for s in range(len(share)) if raw["updates/update_sq"][steps].sum(0)[s] > 0]
        here = [s for s in moved if path is None or raw.layer[s] == path]
        worst = max([share[s] for s in here], default=0)
        others = max([share[s] for s in moved if s not in here], default=0)
        with np.errstate(all="ignore"):
            in_fp32 = raw.ref["updates/stagnant_sq"][steps].sum(0) / raw.ref["updates/update_sq"][steps].sum(0)
        if np.nan_to_num(in_fp32)[here].max(initial=0) > 0.1:
            return "FP32 loses these updates, too"
        if worst < 0.8:
            return f"only {worst:.2g} of the updates' energy is lost"
        return "" if others < 0.3 else f"another layer loses {others:.2g} of its updates"

    if how == "group":
        lr, name = 1e-6, "adam"
    weights = "FP16" if low is FP16_WEIGHTS else "BF16"
    return Plant(
        "lost updates",
        f"{drawn.name}: {drawn.about}",
        f"{path or 'all layers'}: {name}, learning rate {lr:g}, {weights} weights"
        + " (others frozen)" * (how == "frozen"),
        layers_of(path),
        replay(capture, [policy]),
        LANE,
        fires,
    )


def state_case(scene, kind, factor, check):
    """Adam's squares, or SGD's momentum, in FP16; the loss times a factor. SGD's learning rate undoes the factor."""
    drawn = scene.draw()
    path = scene.pick(trained_layers(scene)) if scene.chance() else None
    if path is not None:
        freeze_all_but(scene, path)
    name = scene.pick(["adam", "adamw", "sgd"])
    f = factor(scene)
    if name == "sgd":
        f = f * 10 if f > 1 else f * 1e-6
    policy = scene.policy(PLAIN + '[optimizer]\nstate = "fp16"\n')
    capture = scene.capture(scene.optimizer(name, 1e-3 if name != "sgd" else 0.02 / f), scaled_loss(f))

    def fires(raw):
        if not raw.reference_is_finite():
            return "the reference is not finite"
        sites = [s for s in raw.matching(None, role="optimizer_state") if path is None or raw.layer[s] == path]
        return check(raw, sites)

    return Plant(
        kind,
        f"{drawn.name}: {drawn.about}",
        f"{path or 'all layers'}: {name} with FP16 state, the loss times {f:.3g}"
        + " (others frozen)" * (path is not None),
        layers_of(path),
        replay(capture, [policy]),
        LANE,
        fires,
    )


def state_vanished(scene):
    def check(raw, sites):
        lost = [raw["counts/to_zero"][0, s] / max(raw["counts/count"][0, s], 1) for s in sites]
        return "" if max(lost, default=0) > 0.8 else f"at most {max(lost, default=0):.2g} of a state vanishes"

    return state_case(scene, "optimizer state vanished", lambda s: s.between(1e-3, 0.3), check)


def state_overflow(scene):
    def check(raw, sites):
        first = raw.first_bad()
        if first is None:
            return "no state overflows"
        # The update made from an infinite state comes before it in the order of sites.
        if raw.role[first[1]] not in ("optimizer_state", "update"):
            return f"{raw.site(first[1])} overflows first"
        full = [s for s in sites if raw["counts/to_infinity"][first[0], s] > 0]
        return "" if full else "the states of that step are finite"

    return state_case(scene, "optimizer state overflow", lambda s: s.between(1e6, 1e9), check)


def beta2(scene):
    """Adam's beta2 = 0.999 is 1 in BF16."""
    drawn = scene.draw()
    text = scene.pick(
        [
            '[optimizer]\nstate = "bf16"\narithmetic = "bf16"\n',
            'extends = "pure-bf16:1"\n[optimizer]\nsteps = "elementary"\n',
            'extends = "torch-autocast-bf16:2.12"\n[optimizer]\nstate = "bf16"\narithmetic = "bf16"\n',
        ]
    )
    policy = scene.policy(text)
    # Large steps, so that BF16 weights, where there are some, do move.
    capture = scene.capture(scene.optimizer("adam", 1e-2))

    def fires(raw):
        steps = slice(0, raw.lived())
        total = raw["updates/update_sq"][steps].sum()
        lost = raw["updates/stagnant_sq"][steps].sum() / total if total > 0 else 1
        return "" if lost < 0.1 else f"{lost:.2g} of the updates' energy is lost"

    return Plant(
        "beta2 is 1",
        f"{drawn.name}: {drawn.about}",
        "beta2 = 0.999 with BF16 state and arithmetic",
        None,
        replay(capture, [policy]),
        LANE,
        fires,
        says="beta2",
    )
