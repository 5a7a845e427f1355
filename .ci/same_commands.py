"""The commands that .ci/same_behaviour runs with both programs. Knows nothing of the comparison.

A chain is a list of commands that run one after another in their own folder; chains run in parallel. The names of
presets, models, formats, accumulators and engines come from the old program; the new one must list the same.
"""

import dataclasses
import json
import pathlib
import re
import subprocess
import sys

import h5py

ROOT = pathlib.Path(__file__).resolve().parents[1]
POLICIES = {path.name: path for path in sorted((ROOT / "examples" / "policies").glob("*.toml"))}


@dataclasses.dataclass
class Chain:
    group: str
    name: str
    commands: list  # text after `lockstep`, or a function of the folder
    must: str = ""  # "work": no exit code is 2; "fail": every exit code is 2
    files: dict = dataclasses.field(default_factory=dict)  # name: text, or the path of a file to copy


# ---- replays: {all} is fp64, twin and every preset but fp32, which always runs; {cpu} is the lanes of this CPU's units

GPT_SIZE, TEXT = "--size layers=1,width=32,context=24,heads=2", "the cat sat on the mat; THE DOG did not.\n" * 300
REPLAYS = {
    "mlp": "mlp --size hidden1=32,hidden2=16 --data synthetic:200 --steps 8 --batch 8 --lanes {all} --eval-every 3 "
    "--sums-every 2 --histogram-every 3 --checkpoint-every 3 --optimizer-args nesterov=1",
    "mlp-synced": "mlp --data synthetic:200 --steps 5 --batch 8 --mode synced --lanes {all}{cpu} --optimizer adamw "
    "--schedule linear:warmup=2 --simd scalar --checkpoint-every 2",
    "mlp-masters": "mlp --data synthetic:200 --steps 6 --batch 8 --lanes fp64,twin,fp16-masters.toml,fp16-no-scale.toml,"
    "fp16-scale-8.toml,fp16-scale-32768.toml,odd.toml,careful.toml --optimizer rmsprop "
    "--optimizer-args centered=1,momentum=0.5 --seed 7 --accumulate 2",
    "lenet": "lenet --data synthetic:200 --steps 3 --batch 4 --lanes {all} --optimizer adam --optimizer-args amsgrad=1 "
    "--schedule cosine:warmup=1,eta_min=0.1 --clip-norm 0.5",
    "lenet-workers": "lenet --data synthetic:200 --steps 4 --batch 6 --workers 3 --lanes torch-autocast-bf16,"
    "all-reduce-fp16.toml,all-reduce-fp16-divide-before.toml,all-reduce-fp32.toml,tree.toml "
    "--optimizer adagrad --schedule step:step_size=2 --clip-norm 1 --clip-norm-type inf",
    "lenet-mistakes": "lenet --data synthetic:200 --steps 4 --batch 6 --lanes bn-sums-fp16.toml,clip-before-unscale.toml,"
    "pure-fp16 --clip-norm 1 --clip-value 0.01 --freeze conv1 --eval-batch-norm bn2 "
    "--group fc*:lr=0.01,momentum=0 --schedule exponential:gamma=0.5",
    "resnet20": "resnet20 --size width=4 --data shapes:50 --steps 3 --batch 2 --eval-every 2 --lanes fp64,half-bn-fp32,"
    "apex-o2,mxnet-amp,tf32@hopper,tf32-conv@ampere,torch-autocast-fp16@volta,pure-bf16-kahan{cpu}",
    "unet": "unet --size width=4 --data shapes:50 --steps 3 --batch 2 --lanes twin,torch-autocast-fp16,apex-o1,"
    "pure-bf16-stochastic,torch-autocast-bf16@ampere --schedule polynomial:power=2 --weight-decay 0.01",
    "detector": "detector --size width=4 --data shapes:50 --steps 4 --batch 2 --backward per-loss --lanes fp64,apex-o1,"
    "apex-o2,separate.toml,torch-autocast-fp16@hopper,fp16-optimizer-dynamic",
    "vae": "vae --size hidden=50 --data synthetic:50 --steps 4 --batch 4 --optimizer lion --lanes fp16-masters-vae.toml,"
    "pure-bf16-stochastic,fp8-delayed,apex-o1 --backward per-loss --eval-policy fp32",
    "vit": "vit --size layers=1,width=32,heads=2 --data shapes:50 --steps 3 --batch 4 --accumulate 2 --lanes "
    "nvfp4,mxfp8,fp8-current,tf32@ada,torch-autocast-fp16-cpu,torch-autocast-bf16@blackwell --optimizer adamw",
    "gpt": f"gpt {GPT_SIZE} --data grammar:10000 --steps 3 --batch 2 --lanes {{all}} --optimizer adam --clip-norm 1",
    "gpt-units": f"gpt {GPT_SIZE} --data text:words.txt --steps 3 --batch 2 --lanes torch-autocast-fp16@turing,"
    "torch-autocast-fp16@rtx-blackwell,torch-autocast-bf16@avx512-bf16,torch-autocast-bf16@amx,"
    "torch-autocast-bf16@arm-bf16,torch-autocast-bf16@arm-ebf16,fp8-current@hopper,fp8-delayed@ada{cpu}",
    "bert": "bert --size layers=1,width=32,context=40,heads=2 --data text:words.txt --steps 3 --batch 2 --mode synced "
    "--lanes torch-autocast-bf16,torch-autocast-bf16-cpu,mxfp8,fp64,pure-bf16-master --optimizer adamw",
    "lstm": "lstm --size embedding=16,hidden=24,context=16 --data text:words.txt --steps 4 --batch 3 --lanes {all} "
    "--clip-value 0.05",
}
OWN_POLICIES = {
    "odd.toml": 'extends = "pure-fp16:1"\n[storage]\nweight = "e5m9"\nrounding = "stochastic"\nstream = 3\n'
    '[gemm]\naccumulator = "fp16_unfused"\n[reduce]\naccumulator = "bf16"\n',
    "careful.toml": 'extends = "torch-autocast-fp16"\n[loss_scale]\ninit_scale = 1e9\nbackoff_factor = 0.25\n'
    'growth_interval = 2\nreplay = true\n[[rule]]\nlayer = "fc3"\ncompute = "fp32"\n'
    '[[rule]]\nlayer = "fc1"\nop = "linear"\naccumulator = "fp32_kahan"\n'
    '[[rule]]\nlayer = "fc2"\nrole = "grad_weight"\npoint = "output"\nformat = "fp8_e5m2"\n',
    "tree.toml": 'extends = "torch-autocast-fp16"\n[all_reduce]\nformat = "bf16"\norder = "tree"\ndivide = "before"\n',
    "separate.toml": 'extends = "torch-autocast-fp16"\n[loss_scale]\nper_loss = "separate"\ninit_scale = 1e12\n',
}
CAPTURES = {  # name: case of tests/integration/capture/capture_models.py, autocast, dropout, loss scale; 3 verify steps each
    "recommender": ("recommender", "none", 0.0, 1.0),
    "cnn": ("cnn", "fp16", 0.1, 2.0**26),
    "gpt": ("gpt", "bf16", 0.1, 2.0**16),
    "lstm": ("lstm", "bf16", 0.1, 2.0**16),
}

# ---- command lines that fail, and policy files

WRONG = """
reply | replay | replay lenett -o x.h5 | replay mlp --lanes fp32,torch-autocast-pf16 | replay mlp --lanes tf32,tf32:1
replay mlp --lanes tf32@hoper | replay mlp --lanes torch-autocast-bf16@volta | replay mlp --optimizer sdg
replay mlp --steps 0 --batch 0 | replay mlp --stepz 4 --no-such-option | replay mlp --optimizer sgd --beta1 0.5
replay mlp --seed -1 --steps 99999999999999999999 --batch 1e3 --threads 0 --mode fre --lr fast --lanes fp32,,tf32
replay mlp --data mnist:nowhere | replay gpt --data synthetic | replay gpt --data text:nowhere.txt | replay mlp --data ''
replay mlp --schedule cosin | replay mlp --group nothing:lr=1 | replay mlp --size hidden3=4 | replay text.h5
replay mlp --freeze conv9 | replay detector --backward each | replay mlp --workers 3 --batch 4 | replay --resume none.h5
replay mlp --start-from none.h5.state | replay mlp --simd neon | report text.h5 | report none.h5 | recommend mpl
report text.h5 --format xml | check text.h5 | check text.h5 --baseline none.h5 | verify text.h5 | verify none.lscap.h5
explain lenet --policy torch-autocast-fp61 | explain lenet --policy fp32 --backward per-loss | explain mlp
round 1.0 --format fp61 | round one --format fp16x --rounding upwards | round 1.0 --format e9m3
dot 1,2 1 --accumulator fp16 | dot 1,zero 1,0x12345 0x --accumulator hopper_fp16 | dot 1 1 --accumulator hoper_fp16
list format | list formats --markdown --json | list accumulators nothing | verify --hardware --cases x
"""
BROKEN = {
    "syntax.toml": "[storage\nweight = 1\n",
    "format.toml": '[storage]\nweight = "fp17"\n',
    "type.toml": "[gemm]\noperand = 3\n",
    "key.toml": '[storage]\nweigth = "fp16"\n[no_such]\na = 1\n',
    "extends.toml": 'extends = "torch-autocast-fp61"\n',
    "scale.toml": '[loss_scale]\nkind = "torch-dynamic"\ninit_scale = -1\nbackoff_factor = 2\nhysteresis = 3\n',
    "layer.toml": 'extends = "fp32"\n[[rule]]\nlayer = "conv9"\ncompute = "fp16"\n',
    "master.toml": '[storage]\nweight = "fp16"\n[optimizer]\nmaster_weights = true\nmaster = "bf16"\n',
    "sum.toml": '[gemm]\noperand = "bf16"\naccumulator = "hopper_fp16"\n',
    "ops.toml": '[autocast]\nfp32 = ["softmx"]\n',
    "scaling.toml": '[scaling]\nkind = "block"\nops = ["conv2d"]\noperand = "mxfp8"\n',
    "empty.toml": "",
}
ROWS_CSV = """id,arch,instr,type_a,type_b,acc,a,b,c,d
chip,volta,mma.m8n8k4,f16,f16,f32,7e00,3c00,,7fffffff
other,volta,mma.m8n8k4,f16,f16,f32,7e00,3c00,,7fc00000
half,hopper,mma.sync.m16n8k32,e4m3,e5m2,f16,7f,3c,,7fff
mma,hopper,mma.m16n8k32,e4m3,e4m3,f32,38 08,38 08,,
wmma,hopper,wmma.m16n16k8,tf32,tf32,f32,3f800000 33800000,3f800000 3f800000,,
"""
NUMBERS = "0.1 3.3 1e-8 449 65520 0x1p-25 1e30 inf nan"
FACTORS = (
    "1,-1.5,0.5,3,2,6,-4,1,1.5,0,2,3,-0.5,1,6,6,1,2,3,4 1,1,2,-3,0.5,6,4,1,1,1,2,3,-0.5,1,6,4,1,2,3,4 0.5",
    "448,-0.001953125,1.25,57344,0x1p-14,0x1p-16 448,1.75,0x1p-9,-1,0x1p-14,1 0x1.8p-20",
    "inf,1 0,1",
    "1,nan 1,1",
)


def cut_to(file, steps):
    """A function that makes a run file look as if the run stopped after `steps` steps."""

    def cut(folder):
        with h5py.File(folder / file, "r+") as run:
            run.attrs.modify("steps_complete", run.attrs["steps_complete"].dtype.type(steps))

    return cut


def change_loss(file):
    """A function that doubles the recorded losses of the lane tf32."""

    def change(folder):
        with h5py.File(folder / file, "r+") as run:
            run["lanes/tf32/loss"][...] *= 2

    return change


def replay_chains(presets, cpu_lanes):
    all_lanes = ",".join(["fp64", "twin", *presets])
    for name, words in REPLAYS.items():
        run = f"replay {words} -o {name}.h5".replace("{all}", all_lanes).replace("{cpu}", cpu_lanes)
        yield Chain(
            "replay",
            name,
            [
                run,
                f"report {name}.h5",
                f"recommend {name}.h5",
                f"recommend {name}.h5 --formats bf16 -o recommended.toml",
                f"check {name}.h5 --baseline {name}.h5 --exact",
            ],
            "work",
            {**POLICIES, **OWN_POLICIES, "words.txt": TEXT},
        )
    run = (
        "replay mlp --data synthetic:200 --steps 6 --batch 8 --checkpoint-every 2 --lanes fp64,torch-autocast-fp16,tf32"
    )
    yield Chain(
        "check",
        "mlp",
        [
            f"{run} -o a.h5",
            f"{run} -o b.h5 --threads 1",
            "check b.h5 --baseline a.h5 --exact --strict",
            f"{run} -o c.h5 --seed 2",
            "check c.h5 --baseline a.h5 --exact",
            f"{run},pure-fp16 -o d.h5",
            "check d.h5 --baseline a.h5 --exact",
            "check a.h5 --baseline d.h5 --exact",
            change_loss("b.h5"),
            "check b.h5 --baseline a.h5 --exact",
            "check b.h5 --baseline a.h5 --exact --rel-tol 2",
            "report b.h5",
            "report a.h5 -o report.txt",
            "report a.h5 -o report.txt",
            f"{run} -o a.h5",
            "recommend a.h5 -o mine.toml",
            "recommend a.h5 -o mine.toml --overwrite",
            f"{run},mine.toml -o e.h5 --quiet",
            "replay --resume a.h5",
        ],
    )
    yield Chain(
        "check",
        "resume",
        [
            f"{run} -o a.h5",
            cut_to("a.h5", 5),
            "report a.h5",
            "replay --resume a.h5",
            cut_to("a.h5", 3),
            "replay --resume a.h5",
            f"{run} -o warm.h5 --start-from a.h5.state:tf32",
            "report warm.h5",
        ],
        "work",
    )


def capture_chains(folder):
    """Makes the captures; raises ImportError without torch."""
    sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "integration" / "capture")]
    import capture_models
    import torch

    torch.set_num_threads(1)
    folder.mkdir(parents=True)
    lanes = "fp64,twin,torch-autocast-bf16-cpu,torch-autocast-fp16,torch-autocast-fp16-cpu,pure-bf16"
    for name, (case, amp, dropout, scale) in CAPTURES.items():
        path = folder / f"{name}.lscap.h5"
        capture_models.train(capture_models.TASKS[case], 4, amp, dropout, capture=path, scale=scale)
        file = path.name
        yield Chain(
            "capture",
            name,
            [
                f"replay {file} --steps 2 -o unverified.h5",
                f"verify {file}",
                f"replay {file} --lanes {lanes} -o run.h5",
                "report run.h5",
                "recommend run.h5",
                f"explain {file} --policy torch-autocast-fp16",
                f"explain {file} --policy pure-bf16 --json",
                f"replay {file} --steps 6 --cycle --mode synced -o cycle.h5",
            ],
            "work",
            {file: path},
        )


def text_chains(program, rows, topics, presets):
    commands = [
        words.split()[0]
        for words in ask(program, "--help").split("Subcommands:")[1].splitlines()[1:]
        if words.startswith("  ") and not words.startswith("   ")
    ]
    yield Chain("help", "help", ["--help", "--version", *(f"{command} --help" for command in commands)], "work")
    yield Chain(
        "list",
        "list",
        ["list"]
        + [
            f"list {topic}{style}"
            for topic in topics
            for style in ("", " --markdown", " --json", f" '{next(iter(rows(topic)[0].values()))}'")
        ],
    )
    for row in rows("models"):
        model = row["model"]
        data = " --data synthetic:50" if row["default data"] == "synthetic" else ""  # drawing all of it takes long
        policies = ["fp32", *presets, "fp64", "torch-autocast-fp16@hopper", *POLICIES]
        yield Chain(
            "explain",
            model,
            [f"explain {model} --policy {policy}{data}{style}" for policy in policies for style in ("", " --json")],
            "",
            POLICIES,
        )
    rounds = [f"round {NUMBERS} --format {row['format']}" for topic in ("formats", "blocks") for row in rows(topic)]
    rounds += [
        f"round {NUMBERS} --format {name} --rounding {row['rounding']} --random 12345"
        for name in ("fp16", "bf16+flush_in", "fp8_e4m3+saturate", "e5m9")
        for row in rows("roundings")
    ]
    yield Chain("numbers", "round", rounds)
    yield Chain(
        "numbers",
        "dot",
        [
            f"dot {factors} --accumulator {row['accumulator']} --format "
            f"{'fp16' if row['factors'] == 'any' else row['factors'].split(',')[0]}"
            for row in rows("accumulators")
            for factors in FACTORS
        ]
        + ["dot --csv rows.csv", "dot --csv rows.csv --quiet"],
        "",
        {"rows.csv": ROWS_CSV},
    )
    yield Chain("numbers", "hardware", ["verify --hardware --cases 2000 --json units.json"], "work")
    wrong = [command.strip() for line in WRONG.strip().splitlines() for command in line.split("|")]
    wrong += [
        f"{command} {name}"
        for name in BROKEN
        if name != "empty.toml"
        for command in ("explain mlp --policy", "replay mlp --data synthetic:50 --lanes")
    ]
    yield Chain("wrong command", "wrong", wrong, "fail", {**BROKEN, "text.h5": "not HDF5\n"})


def ask(program, *words):
    return subprocess.run([program, *words], capture_output=True, text=True, check=True).stdout


def chains(program, capture_folder, only=""):
    """The chains whose GROUP/NAME matches `only`, long ones first, and notes on commands left out on this machine."""

    def rows(topic):
        return json.loads(ask(program, "list", topic, "--json"))

    def chosen(group, name):
        return re.search(only, f"{group}/{name}") is not None

    lacking = []
    topics = [line.split()[0] for line in ask(program, "list").splitlines()]
    presets = [row["preset"] for row in rows("presets") if not row["preset"].startswith("fp32:")]
    flags = pathlib.Path("/proc/cpuinfo").read_text().split()
    units = {"f16c": "torch-autocast-fp16@cpu", "avx512_bf16": "torch-autocast-bf16@cpu"}
    cpu_lanes = "".join("," + lane for flag, lane in units.items() if flag in flags)
    lacking += [f"lane {lane} left out: no {flag} here" for flag, lane in units.items() if flag not in flags]
    captures = []
    try:
        captures = list(capture_chains(capture_folder)) if any(chosen("capture", name) for name in CAPTURES) else []
    except ImportError as error:
        lacking.append(f"{len(CAPTURES)} captures left out: {error}")
    every = [*replay_chains(presets, cpu_lanes), *captures, *text_chains(program, rows, topics, presets)]
    if only:
        lacking.append(f"only chains that match '{only}' were run")
    return [chain for chain in every if chosen(chain.group, chain.name)], lacking
