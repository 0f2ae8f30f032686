"""What PyTorch is asked, and that it is the model's own answer."""

from pathlib import Path

import numpy as np
import pytest

from contract_graphs import CHUNK, CONTEXT, token_record, write_records
from snapbake.files import write_json
from snapbake.reference import compute_reference, stop_tokens
from snapbake.subset import Subset, load_subset
from snapbake.torch_reference import TorchModel


def computed(checkpoint: Path, folder: Path, readings: int = 2, generate: int = 16) -> Subset:
    records = [token_record(3, 64, 30), token_record(5, 40, 8), token_record(7, 2, 1)]
    records += [token_record(9, 63, 60), token_record(11, 20, 16)]
    write_records(folder / "heldout.json", records)
    output = folder / "reference.npz"
    compute_reference(checkpoint, folder / "heldout.json", CHUNK, readings, generate, 2, output)
    return load_subset(output)


def test_readings_are_what_the_model_says(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    checkpoint = tiny_models["qwen3"]
    subset = computed(checkpoint, tmp_path)
    assert [(each.record, len(each.ids)) for each in subset.readings] == [(3, 36), (5, 36)]
    model = TorchModel(checkpoint, 2)
    for reading in subset.readings:
        expected = model.read(reading.ids)
        np.testing.assert_array_equal(reading.logits, expected.logits)
        for layer in range(2):
            for index, kind in enumerate(("key", "value")):
                cache = expected.cache[f"past_{kind}_{layer}"]
                np.testing.assert_array_equal(reading.cache[layer, index], cache)


def test_answers_are_greedy_and_fit_the_context(
    tiny_models: dict[str, Path], tmp_path: Path
) -> None:
    checkpoint = tiny_models["llama"]
    subset = computed(checkpoint, tmp_path, readings=1)
    # The first prompts fit a chunk and are not read; then the one of the reading, a long one last.
    assert [(each.record, each.count) for each in subset.answers] == [
        (5, 16),
        (7, 63),
        (11, 48),
        (3, 34),
    ]
    model = TorchModel(checkpoint, 2)
    for answer in subset.answers:
        assert 1 <= len(answer.tokens) == len(answer.margins) <= answer.count
        assert len(answer.prompt) + answer.count <= CONTEXT
        ids = [*answer.prompt, *answer.tokens]
        logits = model.read(ids).logits[len(answer.prompt) - 1 : -1]
        two = np.sort(logits, axis=1)[:, -2:]
        assert logits.argmax(axis=1).tolist() == list(answer.tokens)
        np.testing.assert_allclose(answer.margins, two[:, 1] - two[:, 0], atol=1e-3)
        assert not set(answer.tokens[:-1]) & set(subset.stop)
        assert len(answer.tokens) == answer.count or answer.tokens[-1] in subset.stop


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (2, 2, (2,)),
        (2, [2, 5], (2, 5)),
        ([7, 2], None, (2, 7)),
        (None, 4, (4,)),
        (None, None, ()),
        (0, 3, (0, 3)),
    ],
)
def test_both_files_say_what_ends_an_answer(
    tmp_path: Path,
    config: int | list[int] | None,
    generation: int | list[int] | None,
    expected: tuple[int, ...],
) -> None:
    for name, value in (("config.json", config), ("generation_config.json", generation)):
        content = {"other": 1} if value is None else {"eos_token_id": value}
        write_json(tmp_path / name, content)
    assert stop_tokens(tmp_path) == expected


def test_an_eos_of_null_is_none(tmp_path: Path) -> None:
    for name in ("config.json", "generation_config.json"):
        write_json(tmp_path / name, {"eos_token_id": None})
    assert stop_tokens(tmp_path) == ()
