"""Networks of the zoo under the module of `recommend --emit pytorch`, with layers in FP32: every product's format, and V7.

A network of each of these kinds: zoo/recipe.py says what is checked. Minutes. A network whose package is absent is
skipped. `python -m zoo.runner --recipe bfloat16` runs the whole zoo.
"""

import json

import pytest
from conftest import of_today
from zoo import registry, runner

NETWORKS = {
    "timm_seresnet": "CNN",
    "timm_vit": "vision transformer",
    "gpt2": "decoder",
    "bert": "encoder",
    "t5": "encoder-decoder",
    "packed_lstm": "recurrent",
    "pyg_gat": "graph",
    "unet_2d": "diffusion",
    "segformer": "segmentation",
    "wav2vec2": "speech",
    "detr": "detection",
    "mamba": "state space",
    "dlrm": "recommender",
    "conv3d_classifier": "volumes",
}
MORE_THAN_THE_LOSS_NEEDS = ("detr",)  # the last stages of its backbone
FORMATS = ("bfloat16", "float16")
CASES = of_today(FORMATS)


@pytest.fixture(scope="module")
def results(binary_dir, tmp_path_factory):
    registry.load()
    folder = tmp_path_factory.mktemp("recipes")
    for autocast in (one for one in CASES if one in FORMATS):  # not those of another day
        runner.run_apart(binary_dir / "lockstep", folder, "--recipe", autocast, "--only", ",".join(NETWORKS), "--all")
    return {
        (name, autocast): json.loads(runner.result_file(folder, name, autocast).read_text())
        for autocast in FORMATS
        for name in NETWORKS
        if runner.result_file(folder, name, autocast).exists()
    }


@pytest.mark.parametrize("autocast", CASES)
@pytest.mark.parametrize("name", NETWORKS)
def test_products_run_in_the_policys_formats(results, name, autocast):
    if registry.NETWORKS[name].fp32_only:
        pytest.skip(registry.NETWORKS[name].fp32_only)
    result = results[name, autocast]
    if result["status"] == "absent":
        pytest.skip(result["message"])
    assert result["status"] == "checked", result["message"]
    assert not result["different"], result["different"]
    assert result["one_by_one"] or name in MORE_THAN_THE_LOSS_NEEDS
    assert result["products"] > 0 and result["layers"] > 0
    if autocast == "bfloat16":
        assert result["gate"] == "PASS", result["message"]
        assert result["same_losses"] or "not in every graph" in result["message"]
