"""Builders of cases in built-in models: faults planted by policy files, options, or edited starting weights."""

import h5py
import numpy as np
import planted_runner as runner
from checkpoint_seal import reseal
from planted_case import AUTOCAST_NO_SCALE, HALF, LANE, PLAIN, Plant, first_overflow_is_at
from planted_forward import stored_infinity

# Model: sizes, options that make a step cheap, layers with weights, and the optimizer that practice uses.
SGD, ADAM = ["--optimizer", "sgd", "--lr", "0.05"], ["--optimizer", "adam", "--lr", "1e-3"]
MODELS = {
    "mlp": (["--size", "hidden1=48,hidden2=32", "--data", "synthetic:400"], ["fc1", "fc2", "fc3"], SGD),
    "lenet": (["--data", "synthetic:400"], ["conv1", "conv2", "fc1", "fc2", "fc3"], SGD[:3] + ["0.02"]),
    "vae": (["--size", "hidden=32,latent=4", "--data", "synthetic:400"], None, ADAM),
    "gpt": (
        ["--size", "layers=1,width=16,heads=2,context=16,dropout=0", "--data", "grammar:10000"],
        None,
        ["--optimizer", "adamw", "--lr", "1e-3"],
    ),
    "lstm": (["--size", "layers=1,embedding=8,hidden=16,context=12,dropout=0", "--data", "grammar:10000"], None, ADAM),
}
SMALL = ["mlp", "lenet"]
CALM = ["--optimizer", "sgd", "--lr", "1e-12"]  # with starting weights of 1e5 the reference must stay finite


def command(name, lanes, optimizer=None, steps=12, *more):
    options, _, usual = MODELS[name]
    return [
        "replay",
        name,
        *options,
        "--batch",
        16,
        "--steps",
        steps,
        *(optimizer or usual),
        "--sums-every",
        4,
        "--lanes",
        ",".join(["fp32", *lanes]),
        *more,
    ]


def healthy(scene, lanes):
    name = scene.pick(MODELS)
    steps = scene.pick([12, 24, 40])
    return f"{name}, {steps} steps", command(name, lanes, None, steps, "--seed", int(scene.rng.integers(1, 1000)))


def start(scene, name, seed, edit):
    """A checkpoint of the model after one step whose weights `edit(name, array)` changed."""
    path = scene.folder / "start.h5"
    runner.lockstep(scene.folder, *command(name, [], None, 1), "--seed", seed, *runner.CHEAP, "-o", path.name)
    with h5py.File(f"{path}.state", "r+") as file:
        for lane in file["lanes"].values():
            for key in lane["tensors"]:
                new = edit(key, lane["tensors"][key][()])
                if new is not None:
                    lane["tensors"][key][...] = new
    reseal(f"{path}.state")
    return ["--start-from", f"{path.name}.state:fp32", "--seed", seed]


def weight_of(layer):
    return {f"{layer}.weight", f"{layer}/weight", f"{layer}%2Fweight", f"{layer}.bias", f"{layer}/bias"}


def scaled_start(scene, name, layer, factor):
    changed = []

    def edit(key, array):
        if any(key.endswith(end) for end in weight_of(layer)):
            changed.append(key)
            return array * factor
        return None

    options = start(scene, name, int(scene.rng.integers(1, 1000)), edit)
    assert changed, f"no tensor of {layer}"
    return options


def overflowing(scene):
    """A layer of mlp or lenet whose result overflows in FP16 because its weights are too large."""
    name = scene.pick(SMALL)
    layer = scene.pick(MODELS[name][1])
    factor = scene.between(1e5, 2.5e5)
    return name, layer, scaled_start(scene, name, layer, factor), f"{layer}: weights and bias times {factor:.3g}"


def forward_overflow(scene):
    name, layer, options, words = overflowing(scene)
    policy = scene.policy(scene.pick([AUTOCAST_NO_SCALE, HALF]))
    return Plant(
        "forward overflow",
        f"built-in {name}",
        words,
        {layer},
        command(name, [policy], CALM, 8, *options),
        LANE,
        first_overflow_is_at({layer}, "output"),
    )


def all_skipped(scene):
    name, layer, options, words = overflowing(scene)
    overflow = first_overflow_is_at({layer}, "output")

    def fires(raw):
        return overflow(raw) or ("" if raw["loss_scale/skipped"].all() else "some steps are not skipped")

    return Plant(
        "every step skipped",
        f"built-in {name}",
        words,
        {layer},
        command(name, ["torch-autocast-fp16"], CALM, 12, *options),
        "torch-autocast-fp16",
        fires,
    )


def storage_overflow(scene):
    name = scene.pick(SMALL)
    layer = scene.pick(MODELS[name][1])
    factor = scene.between(3e6, 1e8)
    options = scaled_start(scene, name, layer, factor)
    policy = scene.policy(HALF)

    return Plant(
        "storage overflow",
        f"built-in {name}",
        f"{layer}: weights times {factor:.3g}",
        {layer},
        command(name, [policy], CALM, 8, *options),
        LANE,
        stored_infinity({layer}),
    )


def gradient_vanished(scene):
    """A rule multiplies the gradients inside a layer by a power of two that FP16 cannot hold."""
    name = scene.pick(SMALL)
    layer = scene.pick(MODELS[name][1])
    power = int(scene.rng.integers(24, 36))
    policy = scene.policy(AUTOCAST_NO_SCALE + f'[[rule]]\nlayer = "{layer}"\nloss_scale = {2.0**-power!r}\n')

    def fires(raw):
        lost = raw.lost_energy()[0]
        sites = [s for s in raw.matching({layer}) if raw.scaled[s] and lost[s] > 0.999]
        return "" if sites and raw.first_bad() is None else "no gradient of that layer vanishes"

    return Plant(
        "gradient vanished",
        f"built-in {name}",
        f"{layer}: a factor of 2^-{power} on its gradients",
        {layer},
        command(name, [policy], None, 10),
        LANE,
        fires,
        kinds="gradient vanished, no scale",
    )


def gradient_underflow(scene):
    """The same with a power that takes a part."""
    name = scene.pick(SMALL)
    layer = scene.pick(MODELS[name][1])
    power = int(scene.rng.integers(6, 22))
    policy = scene.policy(AUTOCAST_NO_SCALE + f'[[rule]]\nlayer = "{layer}"\nloss_scale = {2.0**-power!r}\n')

    def fires(raw):
        if raw.first_bad() is not None:
            return "something overflows"
        lost = raw.lost_energy()[0]
        lossy = [s for s in raw.order if raw.scaled[s] and lost[s] > 0.2]
        if not lossy or raw.layer[lossy[0]] != layer:
            return "the gradients lose too little"
        return "" if 0.3 <= max(lost[s] for s in lossy) <= 0.97 else "all of it vanishes"

    return Plant(
        "gradient underflow",
        f"built-in {name}",
        f"{layer}: a factor of 2^-{power} on its gradients",
        {layer},
        command(name, [policy], None, 10),
        LANE,
        fires,
        kinds="gradient underflow, no scale",
    )


def scale_collapse(scene):
    """A rule multiplies the gradients inside a layer so much that hardly any loss scale fits."""
    name = scene.pick(SMALL)
    layer = scene.pick(MODELS[name][1])
    power = int(scene.rng.integers(18, 28))
    policy = scene.policy(
        f'extends = "torch-autocast-fp16:2.12"\n[[rule]]\nlayer = "{layer}"\nloss_scale = {2.0**power!r}\n'
    )

    def fires(raw):
        skipped = raw["loss_scale/skipped"][: raw.lived()].ravel()
        if skipped.sum() < 11:
            return f"{skipped.sum()} steps are skipped"
        culprits = {raw.layer[s] for s in raw["loss_scale/culprit_site"].ravel() if s >= 0}
        return "" if culprits == {layer} else f"the overflows are at {sorted(culprits)}"

    return Plant(
        "scale collapse",
        f"built-in {name}",
        f"{layer}: a factor of 2^{power} on its gradients",
        {layer},
        command(name, [policy], None, 36),
        LANE,
        fires,
    )


def lost_updates(scene):
    """BF16 weights; one layer's learning rate is tiny, the others' is not."""
    name = scene.pick(SMALL)
    layer = scene.pick(MODELS[name][1])
    policy = scene.policy('extends = "torch-autocast-bf16:2.12"\n[storage]\nweight = "bf16"\n')
    more = ["--group", f"{layer}:lr=1e-6"]

    def fires(raw):
        total, lost = raw["updates/update_sq"].sum(0), raw["updates/stagnant_sq"].sum(0)
        share = np.divide(lost, total, out=np.zeros_like(lost), where=total > 0)
        here = [s for s in range(len(share)) if raw.layer[s] == layer]
        others = max(share[s] for s in range(len(share)) if s not in here)
        if max(share[s] for s in here) < 0.8:
            return "the layer's updates are not lost"
        return "" if others < 0.3 else f"another layer loses {others:.2g} of its updates"

    return Plant(
        "lost updates",
        f"built-in {name}",
        f"{layer}: adam, learning rate 1e-6, BF16 weights",
        {layer},
        command(name, [policy], ["--optimizer", "adam", "--lr", 5e-3], 12, *more),
        LANE,
        fires,
    )


def state_vanished(scene):
    name = scene.pick(MODELS)
    policy = scene.policy(PLAIN + '[optimizer]\nstate = "fp16"\n')

    def fires(raw):
        lost = [
            raw["counts/to_zero"][0, s] / max(raw["counts/count"][0, s], 1)
            for s in raw.matching(None, role="optimizer_state")
        ]
        return "" if max(lost) > 0.8 else f"at most {max(lost):.2g} of a state vanishes"

    return Plant(
        "optimizer state vanished",
        f"built-in {name}",
        "Adam with FP16 state",
        None,
        command(name, [policy], ADAM, 10),
        LANE,
        fires,
    )


def beta2(scene):
    name = scene.pick(MODELS)
    policy = scene.policy(PLAIN + '[optimizer]\nstate = "bf16"\narithmetic = "bf16"\n')
    return Plant(
        "beta2 is 1",
        f"built-in {name}",
        "beta2 = 0.999 with BF16 state and arithmetic",
        None,
        command(name, [policy], ADAM, 12),
        LANE,
        lambda raw: "",
        says="beta2",
    )
