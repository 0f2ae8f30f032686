"""Parts of the C++ programs against numpy and Python: half precision, text, sampling."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from android_programs import SOURCES

TEXT = "a ß 水 😀 \U0010ffff \ufffd 𝄞é\x7f"


@pytest.fixture(scope="module")
def probe(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program around the parts; made where the others could be made."""
    assert programs.is_dir()
    program = tmp_path_factory.mktemp("probe") / "probe"
    parts = [SOURCES / f"{name}.cpp" for name in ("sampler", "stored_form", "utf_text")]
    own = Path(__file__).parent / "probe.cpp"
    subprocess.run(
        ["g++", "-std=c++17", "-O1", "-Wall", "-Werror", "-I", SOURCES, own, *parts, "-o", program],
        check=True,
    )
    return program


def call(probe: Path, content: bytes, *words: object) -> bytes:
    """Return what the probe makes of some bytes."""
    done = subprocess.run(
        [probe, *map(str, words)], input=content, stdout=subprocess.PIPE, check=True
    )
    return done.stdout


def test_half_precision_is_that_of_numpy(probe: Path) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    reals = np.frombuffer(call(probe, halves.tobytes(), "real"), np.float32)
    np.testing.assert_array_equal(reals, halves.view(np.float16).astype(np.float32))

    random = np.random.default_rng(0)
    finite = np.sort(halves.view(np.float16)[np.isfinite(halves.view(np.float16))])
    values = finite.astype(np.float64)
    middles = ((values[1:] + values[:-1]) / 2).astype(np.float32)  # ties, exact in float32
    bits = random.integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    edges = np.array([65504, 65519.996, 65520, 1e9, -np.inf, 2.0**-25, 2.0**-24], np.float32)
    beside = np.concatenate([np.nextafter(middles, np.float32(way)) for way in (-1e9, 1e9)])
    reals = np.concatenate([middles, beside, bits, edges, -edges])
    with np.errstate(over="ignore"):
        expected = reals.astype(np.float16)
    found = np.frombuffer(call(probe, reals.tobytes(), "half"), np.float16)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_utf8_in_pieces_is_decoded_as_python_does(probe: Path, size: int) -> None:
    random = np.random.default_rng(size)
    # Bytes that begin, continue and break characters, and good text cut anywhere.
    pool = np.frombuffer(bytes([0x41, 0x80, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2, 0xDF, 0xE0]), np.uint8)
    more = np.frombuffer(bytes([0xED, 0xEF, 0xF0, 0xF4, 0xF5, 0xFF, 0x90, 0x8F]), np.uint8)
    soup = random.choice(np.concatenate([pool, more]), 4000).tobytes()
    text = TEXT.encode() * 50
    for content in (soup, text, text[:-1], b"", text[1:] + b"\xf0\x9f"):
        found = call(probe, content, "decode", size).decode("utf-16-le")
        assert found == content.decode("utf-8", errors="replace")


def test_utf16_becomes_utf8_and_half_characters_do_not_break_it(probe: Path) -> None:
    assert call(probe, TEXT.encode("utf-16-le"), "encode").decode() == TEXT
    broken = "a\ud83d b\ude00 \ud83d\ud83d\ude00 \udfff"
    found = call(probe, broken.encode("utf-16-le", "surrogatepass"), "encode").decode()
    assert found == "a\ufffd b\ufffd \ufffd\U0001f600 \ufffd"


def frequencies(probe: Path, *settings: object) -> NDArray[np.float64]:
    """Return how often each of five tokens with the logits 1 to 5 was chosen of 20,000 times."""
    chosen = np.frombuffer(call(probe, bytes(8 * 20_000), "sample", *settings), np.int32)
    return np.bincount(chosen, minlength=5) / len(chosen)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "kept"),
    [(1.0, 0, 1.0, 5), (0.5, 0, 1.0, 5), (2.0, 3, 1.0, 3), (1.0, 0, 0.8, 2), (2.0, 4, 0.6, 2)],
)
def test_tokens_are_sampled_with_their_probabilities(
    probe: Path, temperature: float, top_k: int, top_p: float, kept: int
) -> None:
    weights = np.exp(np.arange(1, 6) / temperature)
    weights[: 5 - kept] = 0
    found = frequencies(probe, temperature, top_k, top_p, 1)
    np.testing.assert_allclose(found, weights / weights.sum(), atol=0.012)
    assert not found[: 5 - kept].any()
