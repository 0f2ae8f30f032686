"""runner.json: what qnn_runner, the C++ program of android/, has to know beside the binary."""

from collections.abc import Sequence
from typing import Any

from snapbake.decoding import GraphPair
from snapbake.errors import SnapbakeError
from snapbake.rope import rope_frequencies


def runner_parameters(pair: GraphPair, stop: Sequence[int]) -> dict[str, Any]:
    """Return the content of runner.json for a pair of graphs; `stop` are the tokens that end text.

    `inverse_frequencies` are radians a token, one for each pair of a head's channels, as float32.
    Raises SnapbakeError for dynamic scaling where the frequencies change within the context.
    """
    spec, limit = pair.spec, pair.spec.rope.original_max_position_embeddings
    if spec.rope.kind == "dynamic" and limit is not None and pair.context > limit:
        raise SnapbakeError(
            f"dynamic rope scaling changes all positions beyond {limit} tokens and runner.json has "
            f"one set of frequencies; choose a context of at most {limit} tokens"
        )
    frequencies, gain = rope_frequencies(spec.rope, spec.head_dim)
    return {
        "mask_value": pair.mask_value,
        "inverse_frequencies": [float(each) for each in frequencies.astype("float32")],
        "rope_gain": gain,
        "stop_tokens": list(stop),
    }
