"""Language models that predict the next token, mixtures of experts and state spaces among them."""

from ..parts import next_tokens, own_loss
from ..registry import add

_LLAMA = dict(
    vocab_size=64,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
)
_EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
_IDS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
_STATES = dict(vocab_size=64, hidden_size=16, state_size=4, num_hidden_layers=2)

_SIZES = {
    "gpt2": ("decoder", "GPT2", "GPT2LMHeadModel", dict(vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=16)),
    "gpt_neo": (
        "decoder",
        "GPTNeo",
        "GPTNeoForCausalLM",
        dict(
            vocab_size=64,
            hidden_size=16,
            num_layers=2,
            num_heads=2,
            attention_types=[[["global", "local"], 1]],
            window_size=4,
            max_position_embeddings=16,
        ),
    ),
    "gpt_neox": (
        "decoder",
        "GPTNeoX",
        "GPTNeoXForCausalLM",
        dict(
            vocab_size=64,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
        ),
    ),
    "gptj": (
        "decoder",
        "GPTJ",
        "GPTJForCausalLM",
        dict(vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=16, rotary_dim=4),
    ),
    "opt": (
        "decoder",
        "OPT",
        "OPTForCausalLM",
        dict(
            vocab_size=64,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            ffn_dim=32,
            max_position_embeddings=16,
            word_embed_proj_dim=16,
            layerdrop=0.3,
        ),
    ),
    "bloom": ("decoder", "Bloom", "BloomForCausalLM", dict(vocab_size=64, hidden_size=16, n_layer=2, n_head=2)),
    "falcon": (
        "decoder",
        "Falcon",
        "FalconForCausalLM",
        dict(vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2),
    ),
    "mpt": ("decoder", "Mpt", "MptForCausalLM", dict(vocab_size=64, d_model=16, n_layers=2, n_heads=2, max_seq_len=16)),
    "xglm": (
        "decoder",
        "XGLM",
        "XGLMForCausalLM",
        dict(vocab_size=64, d_model=16, num_layers=2, attention_heads=2, ffn_dim=32, max_position_embeddings=16),
    ),
    "llama": ("decoder", "Llama", "LlamaForCausalLM", _LLAMA),
    "mistral": ("decoder", "Mistral", "MistralForCausalLM", _LLAMA | dict(sliding_window=4)),
    "gemma": ("decoder", "Gemma", "GemmaForCausalLM", _LLAMA | dict(head_dim=4)),
    "gemma2": ("decoder", "Gemma2", "Gemma2ForCausalLM", _LLAMA | dict(head_dim=4, sliding_window=4)),
    "qwen2": ("decoder", "Qwen2", "Qwen2ForCausalLM", _LLAMA),
    "qwen3": ("decoder", "Qwen3", "Qwen3ForCausalLM", _LLAMA | dict(head_dim=4)),
    "phi": ("decoder", "Phi", "PhiForCausalLM", _LLAMA),
    "phi3": ("decoder", "Phi3", "Phi3ForCausalLM", _LLAMA | _IDS),
    "olmo2": ("decoder", "Olmo2", "Olmo2ForCausalLM", _LLAMA | _IDS),
    "stablelm": ("decoder", "StableLm", "StableLmForCausalLM", _LLAMA | _IDS),
    "granite": ("decoder", "Granite", "GraniteForCausalLM", _LLAMA),
    "cohere": ("decoder", "Cohere", "CohereForCausalLM", _LLAMA | _IDS),
    "codegen": (
        "decoder",
        "CodeGen",
        "CodeGenForCausalLM",
        dict(vocab_size=64, n_embd=16, n_layer=2, n_head=4, n_positions=16, rotary_dim=4),
    ),
    "mixtral": (
        "mixture of experts",
        "Mixtral",
        "MixtralForCausalLM",
        _LLAMA | dict(num_local_experts=4, output_router_logits=True),
    ),
    "qwen2_moe": (
        "mixture of experts",
        "Qwen2Moe",
        "Qwen2MoeForCausalLM",
        _LLAMA | _EXPERTS | dict(shared_expert_intermediate_size=16),
    ),
    "qwen3_moe": (
        "mixture of experts",
        "Qwen3Moe",
        "Qwen3MoeForCausalLM",
        _LLAMA | _EXPERTS | dict(head_dim=4, norm_topk_prob=True),
    ),
    "olmoe": (
        "mixture of experts",
        "Olmoe",
        "OlmoeForCausalLM",
        _LLAMA | dict(num_experts=4, num_experts_per_tok=2, output_router_logits=True) | _IDS,
    ),
    "deepseek_v3": (
        "mixture of experts",
        "DeepseekV3",
        "DeepseekV3ForCausalLM",
        _LLAMA
        | dict(
            num_key_value_heads=4,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=2,
            topk_group=1,
            moe_intermediate_size=16,
            first_k_dense_replace=1,
            kv_lora_rank=8,
            q_lora_rank=8,
            qk_rope_head_dim=4,
            qk_nope_head_dim=4,
            v_head_dim=4,
        ),
    ),
    "gpt_oss": (
        "mixture of experts",
        "GptOss",
        "GptOssForCausalLM",
        _LLAMA | dict(head_dim=4, num_local_experts=4, num_experts_per_tok=2, sliding_window=4),
    ),
    "granite_moe": (
        "mixture of experts",
        "GraniteMoe",
        "GraniteMoeForCausalLM",
        _LLAMA | dict(num_local_experts=4, num_experts_per_tok=2),
    ),
    "mamba": ("state space", "Mamba", "MambaForCausalLM", _STATES),
    "mamba2": (
        "state space",
        "Mamba2",
        "Mamba2ForCausalLM",
        _STATES | dict(num_heads=4, head_dim=8, n_groups=1, chunk_size=4),
    ),
    "falcon_mamba": ("state space", "FalconMamba", "FalconMambaForCausalLM", _STATES),
    "rwkv": (
        "state space",
        "Rwkv",
        "RwkvForCausalLM",
        dict(vocab_size=64, hidden_size=16, num_hidden_layers=2, attention_hidden_size=16, intermediate_size=32),
    ),
    "recurrent_gemma": (
        "state space",
        "RecurrentGemma",
        "RecurrentGemmaForCausalLM",
        _LLAMA | dict(lru_width=16, attention_window_size=4, num_hidden_layers=3),
    ),
    "bamba": (
        "state space",
        "Bamba",
        "BambaForCausalLM",
        _LLAMA
        | dict(
            mamba_n_heads=4,
            mamba_d_head=8,
            mamba_d_state=4,
            mamba_n_groups=1,
            mamba_chunk_size=4,
            attn_layer_indices=[1],
        ),
    ),
}
_QUICK = {"llama", "mixtral", "mamba"}


def _made(config, model, sizes):
    import transformers

    made = getattr(transformers, model)(getattr(transformers, config + "Config")(**sizes))
    made.config.use_cache = False
    if "expert" in " ".join(sizes):
        made.set_experts_implementation("eager")
    return made, own_loss, next_tokens()


for _name, (_family, _config, _model, _sizes) in _SIZES.items():
    add(
        _name,
        _family,
        "transformers",
        lambda config=_config, model=_model, sizes=_sizes: _made(config, model, sizes),
        quick=_name in _QUICK,
    )
