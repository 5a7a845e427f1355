"""Encoder-decoders of text."""

from ..parts import ints, own_loss
from ..registry import add


def _pairs():
    return {"input_ids": ints(62, 2, 7) + 1, "labels": ints(62, 2, 5) + 1}


_T5 = dict(d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, vocab_size=64, decoder_start_token_id=0)
_BART = dict(
    vocab_size=64,
    d_model=16,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=32,
    decoder_ffn_dim=32,
    max_position_embeddings=32,
)
_IDS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)

_SIZES = {
    "t5": ("T5", "T5ForConditionalGeneration", _T5),
    "flan_t5": (
        "T5",
        "T5ForConditionalGeneration",
        _T5 | dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    ),
    "mt5": ("MT5", "MT5ForConditionalGeneration", _T5),
    "umt5": ("UMT5", "UMT5ForConditionalGeneration", _T5),
    "long_t5": ("LongT5", "LongT5ForConditionalGeneration", _T5 | dict(local_radius=3, global_block_size=4)),
    "switch_transformers": (
        "SwitchTransformers",
        "SwitchTransformersForConditionalGeneration",
        _T5 | dict(num_experts=4, expert_capacity=4, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1),
    ),
    "bart": ("Bart", "BartForConditionalGeneration", _BART | dict(encoder_layerdrop=0.3, decoder_layerdrop=0.3)),
    "mbart": ("MBart", "MBartForConditionalGeneration", _BART | _IDS),
    "marian": ("Marian", "MarianMTModel", _BART | _IDS),
    "pegasus": ("Pegasus", "PegasusForConditionalGeneration", _BART | _IDS),
    "blenderbot": ("Blenderbot", "BlenderbotForConditionalGeneration", _BART | _IDS),
    "m2m_100": ("M2M100", "M2M100ForConditionalGeneration", _BART | _IDS),
    "led": (
        "LED",
        "LEDForConditionalGeneration",
        dict(
            vocab_size=64,
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            attention_window=4,
            max_encoder_position_embeddings=32,
            max_decoder_position_embeddings=32,
        )
        | _IDS,
    ),
    "prophetnet": (
        "ProphetNet",
        "ProphetNetForConditionalGeneration",
        dict(
            vocab_size=64,
            hidden_size=16,
            num_encoder_layers=1,
            num_decoder_layers=1,
            num_encoder_attention_heads=2,
            num_decoder_attention_heads=2,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            max_position_embeddings=32,
        )
        | _IDS,
    ),
}


def _made(config, model, sizes):
    import transformers

    return getattr(transformers, model)(getattr(transformers, config + "Config")(**sizes)), own_loss, _pairs


for _name, (_config, _model, _sizes) in _SIZES.items():
    add(
        _name,
        "encoder-decoder",
        "transformers",
        lambda config=_config, model=_model, sizes=_sizes: _made(config, model, sizes),
        quick=_name == "t5",
    )
