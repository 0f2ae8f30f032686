"""The model families that snapbake builds, and what a config.json of theirs means.

A family is one `Family` entry: which biases and norms its decoder layer has and what a key that is
left out stands for. Everything else reads the resulting `DecoderSpec`, never config.json.
The meaning of the keys is that of the `configuration_*.py` and `modeling_*.py` files of
transformers 4.57; the refusals are the things that those files allow and snapbake's graphs do not.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from snapbake.errors import SnapbakeError

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn"]
Config = Mapping[str, Any]


@dataclass(frozen=True)
class RopeSpec:
    """Rotary position embedding: the base and the kind of scaling with its parameters.

    `original_max_position_embeddings` is in tokens. The parameters from `low_freq_factor` on
    belong to one kind each; None means the default of the formula (see `snapbake.rope`).
    """

    theta: float
    kind: RopeKind = "default"
    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True)
class DecoderSpec:
    """A decoder-only language model: pre-norm blocks, rotary positions, gated SiLU MLP."""

    family: str
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    tied_embeddings: bool
    qk_norm: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    max_position_embeddings: int
    rope: RopeSpec


@dataclass(frozen=True)
class Family:
    """What sets one family apart. `biases` returns (qkv, o, mlp) for a config."""

    title: str
    architecture: str
    qk_norm: bool
    biases: Callable[[Config], tuple[bool, bool, bool]]
    default_head_dim: int | None = None  # None: hidden_size / num_attention_heads


def _llama_biases(config: Config) -> tuple[bool, bool, bool]:
    attention = _flag(config, "attention_bias")
    return attention, attention, _flag(config, "mlp_bias")


def _qwen2_biases(_config: Config) -> tuple[bool, bool, bool]:
    return True, False, False


def _qwen3_biases(config: Config) -> tuple[bool, bool, bool]:
    attention = _flag(config, "attention_bias")
    return attention, attention, False


FAMILIES: Mapping[str, Family] = {
    "llama": Family("Llama (SmolLM2 is one)", "LlamaForCausalLM", False, _llama_biases),
    "qwen2": Family("Qwen2 and Qwen2.5", "Qwen2ForCausalLM", False, _qwen2_biases),
    "qwen3": Family("Qwen3", "Qwen3ForCausalLM", True, _qwen3_biases, default_head_dim=128),
}

# Keys whose mere presence means another kind of network than the one built here.
_EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts")

_ROPE_NUMBERS = (
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
)
_ROPE_KEYS = {
    *_ROPE_NUMBERS,
    "type",
    "rope_type",
    "rope_theta",
    "partial_rotary_factor",
    "original_max_position_embeddings",
    "truncate",
}
_ROPE_NEEDS: Mapping[RopeKind, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}


def supported_families() -> str:
    """Return the supported families as text for messages."""
    return ", ".join(f"{name} ({family.title})" for name, family in FAMILIES.items())


def _family_of(config: Config) -> Family:
    """Return the family that `model_type` names; raise for any other."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        found = "no model_type" if model_type is None else f"model_type {model_type!r}"
        raise SnapbakeError(
            f"config.json has {found}, which snapbake does not build; "
            f"supported are {supported_families()}"
        )
    return FAMILIES[model_type]


def read_spec(config: Config) -> DecoderSpec:
    """Read the content of a config.json, as transformers 4 or 5 writes it.

    Raises SnapbakeError with the key's name for an unknown family, a missing or impossible value,
    and everything that the family allows and snapbake does not build.
    """
    family = _family_of(config)
    _refuse_unsupported(config)
    hidden = _count(config, "hidden_size")
    heads = _count(config, "num_attention_heads")
    kv_heads = _count(config, "num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise SnapbakeError(
            f"config.json: num_attention_heads {heads} is not a multiple of "
            f"num_key_value_heads {kv_heads}; correct the wrong one"
        )
    # Never hidden/heads when the key is there: Qwen3-0.6B has 1024/16 = 64, but heads of 128.
    head_dim = _count(config, "head_dim", default=family.default_head_dim or hidden // heads)
    if head_dim % 2:
        raise SnapbakeError(
            f"config.json: head_dim {head_dim} is odd; rotary positions need an even one"
        )
    qkv_bias, o_bias, mlp_bias = family.biases(config)
    positions = _count(config, "max_position_embeddings")
    return DecoderSpec(
        family=config["model_type"],
        architecture=family.architecture,
        vocab_size=_count(config, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_count(config, "intermediate_size"),
        layers=_count(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=_positive(config, "rms_norm_eps"),
        # transformers' default for all three families; the tensors then prove or refute it.
        tied_embeddings=_flag(config, "tie_word_embeddings"),
        qk_norm=family.qk_norm,
        qkv_bias=qkv_bias,
        o_bias=o_bias,
        mlp_bias=mlp_bias,
        max_position_embeddings=positions,
        rope=_read_rope(config, positions),
    )


def rope_settings(config: Config) -> tuple[float, dict[str, Any] | None]:
    """Return `(rope_theta, rope_scaling)` in the form of transformers 4.

    transformers 5 writes both into `rope_parameters`, which transformers 4 does not read: it takes
    the default base of 10000 without a word. Raises when the two forms disagree, when neither says
    the base, and for the per-layer-type form (nested dictionaries), which has no older equivalent.
    """
    parameters = config.get("rope_parameters")
    scaling = config.get("rope_scaling")
    theta = config.get("rope_theta")
    for key, value in (("rope_parameters", parameters), ("rope_scaling", scaling)):
        if value is not None and not isinstance(value, Mapping):
            raise SnapbakeError(f"config.json: {key} is {value!r}; it must be an object or null")
    if parameters is not None:
        nested = sorted(key for key, value in parameters.items() if isinstance(value, Mapping))
        if nested:
            raise SnapbakeError(
                f"config.json: rope_parameters differs by layer type ({', '.join(nested)}); "
                "snapbake builds models with one rotary embedding for all layers"
            )
        inner = parameters.get("rope_theta", theta)
        if theta is not None and inner != theta:
            raise SnapbakeError(
                f"config.json: rope_theta {theta!r} and rope_parameters.rope_theta {inner!r} "
                "disagree; keep the one that the model was trained with"
            )
        theta = inner
        flattened = _without_default(parameters)
        if scaling is not None and _without_default(scaling) != flattened:
            raise SnapbakeError(
                "config.json: rope_scaling and rope_parameters disagree; keep the one that the "
                "model was trained with"
            )
        scaling = flattened
    elif scaling is not None:
        scaling = _without_default(scaling)
    if theta is None:
        raise SnapbakeError(
            "config.json says no rope_theta (the base of the rotary positions), and a guess would "
            "change the model silently; add the value of the base model's config.json"
        )
    return _number(theta, "rope_theta"), scaling


def layer_tensors(spec: DecoderSpec, layer: int) -> dict[str, str]:
    """Return the tensors of one layer: logical name -> key in the safetensors file.

    Logical names are {input_norm,post_norm,q_norm,k_norm}.weight and
    {q,k,v,o,gate,up,down}_proj.{weight,bias}; only those that this model has. The weight of a
    Linear layer is [out, in].
    """
    prefix = f"model.layers.{layer}"
    names = {
        "input_norm.weight": f"{prefix}.input_layernorm.weight",
        "post_norm.weight": f"{prefix}.post_attention_layernorm.weight",
    }
    for linear in ("q_proj", "k_proj", "v_proj", "o_proj"):
        names[f"{linear}.weight"] = f"{prefix}.self_attn.{linear}.weight"
        if spec.o_bias if linear == "o_proj" else spec.qkv_bias:
            names[f"{linear}.bias"] = f"{prefix}.self_attn.{linear}.bias"
    if spec.qk_norm:
        names["q_norm.weight"] = f"{prefix}.self_attn.q_norm.weight"
        names["k_norm.weight"] = f"{prefix}.self_attn.k_norm.weight"
    for linear in ("gate_proj", "up_proj", "down_proj"):
        names[f"{linear}.weight"] = f"{prefix}.mlp.{linear}.weight"
        if spec.mlp_bias:
            names[f"{linear}.bias"] = f"{prefix}.mlp.{linear}.bias"
    return names


def model_tensors(spec: DecoderSpec) -> dict[str, str]:
    """Return the tensors outside the layers: logical name -> key in the safetensors file.

    `lm_head.weight` is there only when the head is not tied to the embedding.
    """
    names = {
        "embed_tokens.weight": "model.embed_tokens.weight",
        "norm.weight": "model.norm.weight",
    }
    if not spec.tied_embeddings:
        names["lm_head.weight"] = "lm_head.weight"
    return names


def expected_tensors(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Return every tensor that the model must have: key -> shape. A tied head is left out."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    linear_shapes = {
        "q_proj": (spec.heads * spec.head_dim, hidden),
        "k_proj": (spec.kv_heads * spec.head_dim, hidden),
        "v_proj": (spec.kv_heads * spec.head_dim, hidden),
        "o_proj": (hidden, spec.heads * spec.head_dim),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
        "embed_tokens": (spec.vocab_size, hidden),
        "lm_head": (spec.vocab_size, hidden),
    }
    norm_sizes = {"q_norm": spec.head_dim, "k_norm": spec.head_dim}
    shapes: dict[str, tuple[int, ...]] = {}
    for names in (
        model_tensors(spec),
        *(layer_tensors(spec, layer) for layer in range(spec.layers)),
    ):
        for logical, key in names.items():
            module, _, part = logical.partition(".")
            shape = linear_shapes.get(module, (norm_sizes.get(module, hidden),))
            shapes[key] = shape[:1] if part == "bias" else shape
    return shapes


def _refuse_unsupported(config: Config) -> None:
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise SnapbakeError(
            f"config.json: hidden_act is {activation!r}; snapbake builds models with 'silu' only"
        )
    for key in _EXPERT_KEYS:
        if config.get(key):
            raise SnapbakeError(
                f"config.json: {key} is {config[key]!r}; mixture-of-experts models are not "
                "supported, only dense ones"
            )
    if config.get("partial_rotary_factor", 1.0) not in (None, 1):
        raise SnapbakeError(
            f"config.json: partial_rotary_factor is {config['partial_rotary_factor']!r}; "
            "snapbake builds models that rotate the whole head (1.0)"
        )
    layers = _count(config, "num_hidden_layers")
    layer_types = config.get("layer_types")
    if layer_types is None:
        first = config.get("max_window_layers", 28)
        sliding = (
            _flag(config, "use_sliding_window")
            and config.get("sliding_window") is not None
            and not (isinstance(first, int) and first >= layers)
        )
        if sliding:
            raise SnapbakeError(
                f"config.json: use_sliding_window is on from layer {first!r} on; snapbake builds "
                "full attention in every layer only"
            )
    elif layer_types != ["full_attention"] * layers:
        raise SnapbakeError(
            f"config.json: layer_types is not 'full_attention' for each of the {layers} layers; "
            "snapbake builds full attention in every layer only"
        )


def _without_default(parameters: Config) -> dict[str, Any] | None:
    """Return rope parameters without the base, None for plain rotary positions."""
    kind = parameters.get("rope_type", parameters.get("type"))
    rest = {key: parameters[key] for key in parameters if key not in ("rope_theta", "type")}
    if kind is None and rest:
        raise SnapbakeError(
            f"config.json: the rope parameters ({', '.join(sorted(rest))}) come without rope_type; "
            "add the kind of scaling that the model was trained with"
        )
    if kind in (None, "default"):
        return None
    return {**rest, "rope_type": kind}


def _read_rope(config: Config, max_positions: int) -> RopeSpec:
    theta, scaling = rope_settings(config)
    if scaling is None:
        return RopeSpec(theta=theta)
    kind = scaling["rope_type"]
    if kind not in get_args(RopeKind):
        raise SnapbakeError(
            f"config.json: rope type {kind!r} is not supported; "
            f"supported are {', '.join(get_args(RopeKind))}"
        )
    kind = cast(RopeKind, kind)
    unknown = sorted(set(scaling) - _ROPE_KEYS)
    if unknown:
        raise SnapbakeError(
            f"config.json: the rope parameters have {', '.join(unknown)}, whose meaning is not "
            "known here; remove what the model was not trained with"
        )
    missing = [key for key in _ROPE_NEEDS[kind] if scaling.get(key) is None]
    if missing:
        raise SnapbakeError(
            f"config.json: rope type {kind!r} needs {', '.join(missing)}; add what the model was "
            "trained with"
        )
    if scaling.get("partial_rotary_factor", 1.0) != 1:
        raise SnapbakeError(
            "config.json: partial_rotary_factor of the rope parameters is not 1; snapbake builds "
            "models that rotate the whole head"
        )
    numbers = {
        key: _number(scaling[key], f"rope parameter {key}")
        for key in _ROPE_NUMBERS
        if scaling.get(key) is not None
    }
    original = _count(scaling, "original_max_position_embeddings", default=max_positions)
    if kind == "dynamic":
        # transformers 4.57 measures against max_position_embeddings, whatever the original was.
        original = max_positions
    return RopeSpec(
        theta=theta,
        kind=kind,
        original_max_position_embeddings=original,
        # The reference takes null for false here, and only a missing key for true.
        truncate=_flag(scaling, "truncate", default="truncate" not in scaling),
        **numbers,
    )


def _count(config: Config, key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if value is None:
        raise SnapbakeError(f"config.json has no {key}; add the value of the base model")
    # LLaMA-Factory writes max_position_embeddings as 65536.0 when it scales the rope.
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if not whole or isinstance(value, bool) or value < 1:
        raise SnapbakeError(f"config.json: {key} is {value!r}; it must be a whole number from 1 on")
    return int(value)


def _positive(config: Config, key: str) -> float:
    if config.get(key) is None:
        raise SnapbakeError(f"config.json has no {key}; add the value of the base model")
    return _number(config[key], key)


def _number(value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
        raise SnapbakeError(f"config.json: {key} is {value!r}; it must be a number above 0")
    return float(value)


def _flag(config: Config, key: str, default: bool = False) -> bool:
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise SnapbakeError(f"config.json: {key} is {value!r}; it must be true or false")
    return value
