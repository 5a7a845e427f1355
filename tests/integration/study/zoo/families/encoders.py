"""Encoders of text, with their usual heads."""

import torch

from ..parts import ints, own_loss
from ..registry import add

_BERT = dict(
    vocab_size=64,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=20,
)
_IDS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)

_SIZES = {
    "bert": ("Bert", "MaskedLM", _BERT),
    "roberta": ("Roberta", "TokenClassification", _BERT | dict(pad_token_id=0, num_labels=3)),
    "distilbert": (
        "DistilBert",
        "SequenceClassification",
        dict(vocab_size=64, dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=20),
    ),
    "albert": ("Albert", "MaskedLM", _BERT | dict(embedding_size=8)),
    "electra": ("Electra", "PreTraining", _BERT | dict(embedding_size=8)),
    "deberta": (
        "Deberta",
        "SequenceClassification",
        _BERT | dict(relative_attention=True, pos_att_type=["c2p", "p2c"], pooler_hidden_size=16),
    ),
    "deberta_v2": (
        "DebertaV2",
        "MaskedLM",
        _BERT
        | dict(
            relative_attention=True,
            pos_att_type=["c2p", "p2c"],
            position_buckets=4,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
        ),
    ),
    "mpnet": ("MPNet", "MaskedLM", _BERT | dict(pad_token_id=1)),
    "squeezebert": (
        "SqueezeBert",
        "SequenceClassification",
        _BERT | dict(embedding_size=16, q_groups=2, k_groups=2, v_groups=2, intermediate_groups=2),
    ),
    "mobilebert": (
        "MobileBert",
        "MaskedLM",
        _BERT | dict(embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16),
    ),
    "funnel": (
        "Funnel",
        "MaskedLM",
        dict(vocab_size=64, block_sizes=[1, 1], num_decoder_layers=1, d_model=16, n_head=2, d_head=8, d_inner=32),
    ),
    "fnet": (
        "FNet",
        "MaskedLM",
        dict(vocab_size=64, hidden_size=16, num_hidden_layers=2, intermediate_size=32, max_position_embeddings=20),
    ),
    "longformer": ("Longformer", "MaskedLM", _BERT | dict(attention_window=4, pad_token_id=1)),
    "big_bird": ("BigBird", "MaskedLM", _BERT | dict(attention_type="original_full")),
    "convbert": ("ConvBert", "MaskedLM", _BERT | dict(embedding_size=16, conv_kernel_size=3)),
    "roformer": ("RoFormer", "MaskedLM", _BERT | dict(embedding_size=16)),
    "xlnet": ("XLNet", "LMHeadModel", dict(vocab_size=64, d_model=16, n_layer=2, n_head=2, d_inner=32)),
    "modernbert": (
        "ModernBert",
        "MaskedLM",
        _BERT | dict(global_attn_every_n_layers=2, local_attention=4, pad_token_id=0),
    ),
    "nystromformer": ("Nystromformer", "MaskedLM", _BERT | dict(num_landmarks=2, segment_means_seq_len=8)),
    "ibert": ("IBert", "MaskedLM", _BERT | dict(pad_token_id=0)),
}


def _batch(head):
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, 6:] = 0
    labels = {
        "SequenceClassification": lambda: ints(2, 2),
        "TokenClassification": lambda: ints(3, 2, 8),
        "PreTraining": lambda: ints(2, 2, 8),
    }.get(head, lambda: ints(60, 2, 8))
    return {"input_ids": ints(60, 2, 8) + 3, "attention_mask": mask, "labels": labels()}


def _made(kind, head, sizes):
    import transformers

    model = kind + (head if head == "LMHeadModel" else "For" + head)
    made = getattr(transformers, model)(getattr(transformers, kind + "Config")(**sizes))
    batch = (
        (lambda: {key: value for key, value in _batch(head).items() if key != "attention_mask"})
        if kind in ("FNet", "Nystromformer")
        else lambda: _batch(head)
    )
    return made, own_loss, batch


for _name, (_kind, _head, _sizes) in _SIZES.items():
    add(
        _name,
        "encoder",
        "transformers",
        lambda kind=_kind, head=_head, sizes=_sizes: _made(kind, head, sizes),
        quick=_name == "bert",
    )
