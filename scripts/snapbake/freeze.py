"""Fixed shapes for Optimum's dynamic graph: batch 1, a chunk of new tokens, the rest is past.

Two graphs come from one export: prefill takes a chunk of tokens with context - chunk of past,
decode takes one token with context - 1. Where there is less past, the caller masks it; masked zero
past gives exactly what no past gives. Only the graph is rewritten; the weights stay where they are.
"""

from pathlib import Path

from snapbake.errors import SnapbakeError
from snapbake.onnx_files import load_graph, require_external_data, save_graph, shape_of
from snapbake.optimum_graph import (
    ALL,
    BATCH,
    NEW,
    PAST,
    count_layers,
    expected_borders,
    require_borders,
)


def frozen_sizes(tokens: int, context: int) -> dict[str, int]:
    """Return the size of each of Optimum's dynamic dimensions, in tokens (batch: sequences)."""
    if tokens < 1:
        raise SnapbakeError(f"a graph takes at least 1 token at a time, found {tokens}")
    if context <= tokens:
        raise SnapbakeError(
            f"a context of {context} tokens leaves no past beside a chunk of {tokens}, and graphs "
            "without past do not compile; take a longer context or a smaller chunk"
        )
    return {BATCH: 1, NEW: tokens, PAST: context - tokens, ALL: context}


def freeze_shapes(model_path: Path, tokens: int, context: int, output: Path) -> None:
    """Write the graph of `model_path` with fixed shapes to `output`, in the same folder."""
    sizes = frozen_sizes(tokens, context)
    require_same_folder(model_path, output)
    model = load_graph(model_path)
    require_external_data(model, model_path)
    require_borders(model, model_path, expected_borders(count_layers(model)))
    for value in (*model.graph.input, *model.graph.output):
        for dim, size in zip(value.type.tensor_type.shape.dim, shape_of(value), strict=True):
            if isinstance(size, str):
                dim.dim_value = sizes[size]  # this clears the name
    # What was inferred for dynamic shapes holds no longer.
    model.graph.ClearField("value_info")
    require_borders(model, output, expected_borders(count_layers(model), sizes=sizes))
    save_graph(model, output)


def require_same_folder(model_path: Path, output: Path) -> None:
    """Raise unless both paths lie in one folder, where the references to the weights hold."""
    if output.parent.resolve() != model_path.parent.resolve():
        raise SnapbakeError(
            f"{output} must lie in {model_path.parent}, beside the data file that it shares with "
            f"{model_path.name}; choose an output there"
        )
    if output.resolve() == model_path.resolve():
        raise SnapbakeError(f"{output} would overwrite the input; choose another name")
