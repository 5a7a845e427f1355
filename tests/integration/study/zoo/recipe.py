"""One network under the module of `recommend --emit pytorch`: does every product run in the policy's format?

Two policies keep layers in FP32: the first and the last with products, and every third. Under each, products are
recorded in PyTorch, forward and backward, and compared with `lockstep explain`. With BF16, a run under the second one is
captured: gate V7 must pass, and the lane of the policy must have the losses of the lane that repeats the captured run.
"""

import dataclasses
import json
import pathlib
import subprocess
import traceback
from typing import Any

import recipes_in_torch as recipes

from .registry import Network
from .specimen import _failure, _seed, _train

_FORMATS = {"bfloat16": "bf16", "float16": "fp16"}
_LONGEST = 3000  # characters of a message


@dataclasses.dataclass
class Result:
    """status: absent | refused (by the capture, or no module has products) | broken | checked. products: that ran; layers: kept in FP32.

    different: the layers with other formats, "" if none. one_by_one: the forward products are those of the program, one
    by one; otherwise PyTorch also ran some that the loss does not need, or took another way through the model. gate (V7),
    same_losses: of the captured run; "" and None without one.
    """

    name: str
    autocast: str
    status: str = ""
    message: str = ""
    products: int = 0
    layers: int = 0
    different: str = ""
    one_by_one: bool = True
    gate: str = ""
    same_losses: bool | None = None

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def line(result: dict[str, Any]) -> str:
    word = result["status"] if result["status"] != "checked" else result["different"] or "ok"
    return f"{result['name']:28s} {result['autocast']:9s} {word} {result['products']} {result['gate']} {result['same_losses']}"


def examine(network: Network, autocast: str, program: pathlib.Path, folder: pathlib.Path) -> Result:
    """autocast: "bfloat16" or "float16"."""
    result = Result(network.name, autocast)
    place = folder / f"{network.name}.{autocast}.files"
    place.mkdir(exist_ok=True)
    try:
        plain = place / "plain.h5"
        said = _train(network, "", plain).said
        result.status, result.message = ("checked", "") if plain.exists() else ("refused", said[-_LONGEST:])
    except Exception as error:
        result.status, result.message = _failure(error)
    if result.status == "checked":
        try:
            _check(result, network, _FORMATS[autocast], program, place)
        except Exception:
            result.status, result.message = "broken", traceback.format_exc()[-_LONGEST:]
    for file in place.iterdir():
        file.unlink()
    place.rmdir()
    return result


def _check(result: Result, network: Network, low: str, program: pathlib.Path, place: pathlib.Path) -> None:
    graph = recipes.captured_graph(place / "plain.h5")
    layers = _layers_with_products(network, graph)
    if not layers:
        result.status, result.message = "refused", "no module has products of its own"
        return
    for listed in (dict.fromkeys([layers[0], layers[-1]]), layers[1::3]):
        amp = recipes.emit(program.parent, place, recipes.policy_text(low, listed), graph)
        theirs = _products(network, amp)
        ours = recipes.products_of_policy(_explained(program, place), graph)
        result.products += theirs.count
        result.layers += len(amp.FP32_LAYERS)
        result.one_by_one &= theirs.forward == ours[0]
        if sorted(listed) != sorted(amp.FP32_LAYERS):
            result.different += f"not kept: {sorted(set(listed) - set(amp.FP32_LAYERS))} "
        result.different += _difference("forward", theirs.forward, ours[0]) + _difference(
            "backward", theirs.backward, ours[1]
        )
    if low == "bf16":
        _capture(result, network, amp, program, place)


def _layers_with_products(network: Network, graph: str) -> list[str]:
    nodes = json.loads(graph)["nodes"]
    _seed(1)
    modules = dict(network.build()[0].named_modules())
    layers = [node["module"] for node in nodes if node["op"] in recipes.PRODUCTS_OF_GRAPHS and node["module"]]
    return [layer for layer in dict.fromkeys(layers) if layer in modules]


def _products(network: Network, amp: Any) -> recipes.Products:
    """Of the first step of the loop in specimen.py."""
    _seed(1)
    model, step, batch = network.build()
    model.train()
    _seed(2)
    batches = [batch() for _ in range(network.steps)]
    _seed(3)
    amp.apply(model)
    with recipes.Products(model) as products:
        with amp.autocast("cpu"):
            loss = step(model, batches[0])
        loss.backward()
    return products


def _explained(program: pathlib.Path, place: pathlib.Path) -> Any:
    return json.loads(_run(program, "explain", place / "plain.h5", "--policy", place / "policy.toml", "--json"))


def _difference(which: str, theirs: Any, ours: Any) -> str:
    """Of layers that have products here and there."""
    both = {layer for layer, _ in theirs} & {layer for layer, _ in ours}
    left = [{pair for pair in pairs if pair[0] in both} for pairs in (theirs, ours)]
    if left[0] == left[1]:
        return "" if both or not ours else f"{which}: no layer in common. "
    return f"{which}: only in PyTorch {sorted(left[0] - left[1])[:4]}, only by the policy {sorted(left[1] - left[0])[:4]}. "


def _capture(result: Result, network: Network, amp: Any, program: pathlib.Path, place: pathlib.Path) -> None:
    path = place / "amp.h5"
    said = _train(network, "bfloat16", path, amp.apply).said
    if not path.exists():
        result.gate = f"refused: {said[-_LONGEST:]}"
        return
    subprocess.run([program, "verify", path], capture_output=True)
    gates = json.loads(pathlib.Path(f"{path}.verify.json").read_text())["gates"]
    result.gate = next(gate["status"] for gate in gates if gate["name"] == "V7")
    result.message += next(gate["figure"] for gate in gates if gate["name"] == "V7")
    try:
        losses = [_losses(program, path, lane) for lane in (place / "policy.toml", "torch-autocast-bf16-cpu:2.13")]
        result.same_losses = losses[0] == losses[1] and len(losses[0]) > 0
    except AssertionError as error:  # layers that are left out at random are not in the graphs of all steps
        if "matches nothing" not in str(error):
            raise
        result.message += " No lane of the policy: a listed layer is not in every graph."


def _losses(program: pathlib.Path, path: pathlib.Path, lane: Any) -> list[float]:
    from lockstep_capture import read_run

    run = f"{path}.run.h5"
    _run(program, "replay", path, "--lanes", f"fp32,{lane}", "-o", run, "--overwrite", "--quiet")
    table = read_run(run).steps["loss"].unstack("lane")
    return list(table[next(name for name in table if name not in ("fp32", "twin", "captured"))])


def _run(*command: Any) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-_LONGEST:]
    return done.stdout
