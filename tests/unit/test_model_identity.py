"""The identity of a model changes with what shapes its logits, and with nothing else."""

from dataclasses import fields, replace
from typing import Any, get_args

import numpy as np
import pytest

from snapbake.families import DecoderSpec, RopeKind, RopeSpec, read_spec
from snapbake.model_identity import model_identity
from snapbake.rope import rope_frequencies
from tiny_models import tiny_config

WEIGHTS = "00" * 32
# Every parameter has a value, whether its kind reads it or not.
ROPE = RopeSpec(
    theta=10000.0,
    factor=4.0,
    original_max_position_embeddings=256,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    beta_fast=16.0,
    beta_slow=2.0,
)


def spec(rope: RopeSpec = ROPE) -> DecoderSpec:
    return replace(read_spec(tiny_config("qwen3", layers=1, vocab=320, tie=True)), rope=rope)


def identity(rope: RopeSpec) -> str:
    return model_identity(spec(rope), WEIGHTS)


def changed(value: Any) -> Any:
    """Return another value of the same type; a ratio that no two parameters share."""
    if isinstance(value, bool):
        return not value
    return f"{value}x" if isinstance(value, str) else type(value)(value * 3)


def test_identities_that_were_written_down_stay_true() -> None:
    # As of the first version. Where this has to change, every `sha256` that people have put into
    # their configuration is refused.
    assert model_identity(spec(RopeSpec(10000.0)), WEIGHTS) == (
        "55947050b34a428ab38565c82ac06a7be07113a2577beb3bef83990394be23cb"
    )
    assert identity(replace(ROPE, kind="yarn")) == (
        "a409896b6bf5abc3575e40cbd2da114be8820f031c67c96971d238081cb3ca97"
    )


@pytest.mark.parametrize("name", [field.name for field in fields(DecoderSpec)])
def test_every_number_of_the_network_is_in_it(name: str) -> None:
    other = RopeSpec(500.0) if name == "rope" else changed(getattr(spec(), name))

    same = model_identity(replace(spec(), **{name: other}), WEIGHTS) == identity(ROPE)

    assert same is (name in ("architecture", "max_position_embeddings"))


def test_the_weights_are_in_it() -> None:
    assert model_identity(spec(), "01" * 32) != identity(ROPE)


@pytest.mark.parametrize("gain", [{}, {"mscale": 2.0, "mscale_all_dim": 0.5}, {"mscale": 2.0}])
@pytest.mark.parametrize("kind", get_args(RopeKind))
def test_rope_parameters_are_in_it_where_the_tables_read_them(
    kind: RopeKind, gain: dict[str, float]
) -> None:
    rope = replace(ROPE, kind=kind, **gain)
    differing = set()
    for field in fields(RopeSpec):
        value = getattr(rope, field.name)
        if field.name == "kind" or value is None:
            continue
        other = replace(rope, **{field.name: changed(value)})
        if identity(other) != identity(rope):
            differing.add(field.name)
        if tables(other) != tables(rope):
            assert field.name in differing, field.name
        elif kind != "dynamic":  # whose tables are only those of the first tokens
            assert field.name not in differing, field.name
    if kind == "dynamic":
        assert differing == {"theta", "factor", "original_max_position_embeddings"}


def tables(rope: RopeSpec) -> tuple[bytes, float]:
    frequencies, gain = rope_frequencies(rope, 64)
    return np.asarray(frequencies).tobytes(), gain


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({}, {"beta_fast": 32.0, "beta_slow": 1.0}),
        ({}, {"mscale": 2.0}),
        (
            {"attention_factor": 0.7},
            {"attention_factor": 0.7, "mscale": 2.0, "mscale_all_dim": 3.0},
        ),
    ],
    ids=["betas", "half a pair", "a gain that wins"],
)
def test_what_the_formula_takes_anyway_may_be_written_out(
    short: dict[str, float], long: dict[str, float]
) -> None:
    first, second = (RopeSpec(10000.0, "yarn", 4.0, 256, **more) for more in (short, long))

    assert tables(first) == tables(second)
    assert identity(first) == identity(second)
    assert identity(replace(first, attention_factor=0.8)) != identity(first)
