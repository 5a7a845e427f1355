"""Networks added after the work was done: run once, counted apart, and not changed since."""

import torch
import torch.nn.functional as F
from torch import nn

from ..parts import images, ints, labelled, normal, own_loss
from ..registry import add, network
from . import decoders, detection, encoder_decoders, encoders, graphs, other, recommenders, segmentation, speech

_SMALL = dict(
    vocab_size=64,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)

for _name, _family, _make in [
    (
        "gpt_big_code",
        "decoder",
        lambda: decoders._made(
            "GPTBigCode", "GPTBigCodeForCausalLM", dict(vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=16)
        ),
    ),
    ("starcoder2", "decoder", lambda: decoders._made("Starcoder2", "Starcoder2ForCausalLM", _SMALL)),
    (
        "plbart",
        "encoder-decoder",
        lambda: encoder_decoders._made(
            "PLBart", "PLBartForConditionalGeneration", encoder_decoders._BART | encoder_decoders._IDS
        ),
    ),
    (
        "camembert",
        "encoder",
        lambda: encoders._made(
            "Camembert", "SequenceClassification", encoders._BERT | dict(pad_token_id=0, num_labels=2)
        ),
    ),
    ("table_transformer", "detection", lambda: detection._detr("TableTransformer", detection._DETR, ["stage2"])),
    ("unispeech", "speech", lambda: speech._ctc("UniSpeech", speech._ENCODER)),
]:
    add(_name, _family, "transformers", _make, held_out=True)


@network("state space", "transformers", held_out=True)
def jamba():
    """Attention, state spaces and experts in turn."""
    return decoders._made(
        "Jamba",
        "JambaForCausalLM",
        _SMALL
        | dict(
            num_hidden_layers=4,
            num_experts=2,
            num_experts_per_tok=1,
            expert_layer_period=2,
            expert_layer_offset=1,
            attn_layer_period=2,
            attn_layer_offset=1,
            mamba_d_state=4,
            mamba_dt_rank=4,
            use_mamba_kernels=False,
        ),
    )


@network("vision and language", "transformers", held_out=True)
def siglip():
    from transformers import SiglipConfig, SiglipModel

    part = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    config = SiglipConfig(
        text_config=part | dict(vocab_size=64, max_position_embeddings=6),
        vision_config=part | dict(image_size=16, patch_size=8),
    )
    return (
        SiglipModel(config),
        lambda m, b: m(**b, return_loss=True).loss,
        lambda: {"input_ids": ints(64, 3, 6), "pixel_values": normal(3, 3, 16, 16)},
    )


@network("segmentation", "transformers", held_out=True)
def dpt():
    from transformers import DPTConfig, DPTForSemanticSegmentation

    return (
        DPTForSemanticSegmentation(
            DPTConfig(
                hidden_size=16,
                num_hidden_layers=4,
                num_attention_heads=2,
                intermediate_size=32,
                image_size=32,
                patch_size=8,
                backbone_out_indices=[0, 1, 2, 3],
                neck_hidden_sizes=[8, 8, 16, 16],
                fusion_hidden_size=8,
                num_labels=4,
                auxiliary_loss_weight=0.4,
            )
        ),
        own_loss,
        lambda: {"pixel_values": normal(2, 3, 32, 32), "labels": ints(4, 2, 32, 32)},
    )


@network("segmentation", "segmentation-models-pytorch", held_out=True)
def smp_pan():
    model, step, _ = segmentation._smp("PAN", decoder_channels=16)
    return model, step, segmentation._maps(size=128)


@network("classification", "timm", held_out=True)
def timm_inception_next():
    import timm

    return timm.create_model("inception_next_atto", num_classes=5, drop_path_rate=0.1), labelled, images(5, 64, count=4)


@network("classification", "torchvision", held_out=True)
def torchvision_regnet():
    import torchvision

    return torchvision.models.regnet_y_400mf(num_classes=5), labelled, images(5, 64, count=4)


@network("classification", "vit-pytorch", held_out=True)
def vit_pytorch_crossformer():
    from vit_pytorch.crossformer import CrossFormer

    return (
        CrossFormer(
            num_classes=5,
            dim=(32, 32, 32, 32),
            depth=(1, 1, 1, 1),
            global_window_size=(4, 2, 2, 1),
            local_window_size=(4, 4, 2, 2),
        ),
        labelled,
        images(5, 64),
    )


@network("graph", "torch_geometric", held_out=True)
def pyg_gps():
    """Messages and attention over all nodes side by side."""
    from torch_geometric.nn import GINConv, GPSConv

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
            self.layers = nn.ModuleList(
                GPSConv(8, GINConv(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))), heads=2, dropout=0.1)
                for _ in range(2)
            )

        def forward(self, x, edges):
            h = self.first(x)
            for layer in self.layers:
                h = layer(h, edges)
            return self.head(h)

    return Net(), graphs._classify, graphs._graph()


@network("metric learning", "pytorch-metric-learning", held_out=True)
def pml_sup_con():
    from pytorch_metric_learning.losses import SupConLoss

    from .small import _embedded

    return _embedded(SupConLoss())


@network("self-supervision", "lightly", held_out=True)
def lightly_sim_siam():
    from lightly.loss import NegativeCosineSimilarity
    from lightly.models.modules import SimSiamPredictionHead

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.predict, self.loss = (
                other._Encoder(),
                SimSiamPredictionHead(8, 4, 8),
                NegativeCosineSimilarity(),
            )

        def forward(self, a, b):
            za, zb = self.body(a), self.body(b)
            return 0.5 * (self.loss(self.predict(za), zb.detach()) + self.loss(self.predict(zb), za.detach()))

    return Net(), lambda m, b: m(*b), other._views()


@network("recommender", "deepctr-torch", held_out=True)
def deepctr_difm():
    return recommenders._deepctr("DIFM", dnn_hidden_units=(8, 4), att_head_num=2)


@network("adapters", "peft", held_out=True)
def peft_lokr():
    return other._adapted("LoKrConfig", r=2, **other._PROJECTIONS)


@network("reinforcement", held_out=True)
def twin_critics():
    """TD3's: the smaller of two target critics, smoothed actions."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.ModuleList(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)) for _ in range(2))
            self.target = nn.ModuleList(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)) for _ in range(2))
            self.actor = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2), nn.Tanh())
            self.target.requires_grad_(False)
            self.actor.requires_grad_(False)

        def forward(self, state, action, reward, after):
            with torch.no_grad():
                noise = (torch.randn_like(action) * 0.2).clamp(-0.5, 0.5)
                pair = torch.cat([after, (self.actor(after) + noise).clamp(-1, 1)], -1)
                wanted = reward + 0.99 * torch.minimum(*(target(pair) for target in self.target))
            return sum(F.mse_loss(q(torch.cat([state, action], -1)), wanted) for q in self.q)

    return Net(), lambda m, b: m(*b), lambda: (normal(8, 4), normal(8, 2), normal(8, 1), normal(8, 4))


@network("speech", "torchaudio", held_out=True)
def wave_rnn():
    from torchaudio.models import WaveRNN

    model = WaveRNN(
        upsample_scales=[2, 2],
        n_classes=8,
        hop_length=4,
        n_res_block=1,
        n_rnn=8,
        n_fc=8,
        kernel_size=3,
        n_freq=6,
        n_hidden=8,
        n_output=8,
    )

    def step(model, batch):
        wave, mel, target = batch
        return F.cross_entropy(model(wave, mel).squeeze(1).transpose(1, 2), target)

    return model, step, lambda: (normal(2, 1, 24), normal(2, 1, 6, 8), ints(8, 2, 24))
