"""The HTP contract graphs of a tiny model, their recipes and records to run through them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from snapbake.cpu_runner import CpuRunner
from snapbake.decoding import Border, GraphPair, border_names
from snapbake.families import read_spec
from snapbake.files import read_json
from snapbake.htp_graph import write_decoder
from snapbake.htp_weights import write_htp_weights
from snapbake.quantize import Precision, calibrate_and_quantize
from snapbake.token_records import TokenRecord, write_token_records

CHUNK = 16
CONTEXT = 64
W8A16 = Precision(weight_bits=8, activation_bits=16, kv_bits=16)


def make_contract(
    checkpoint: Path, folder: Path, tokens: int = CHUNK, context: int = CONTEXT
) -> dict[str, Path]:
    """Write weights.data, weights.json, prefill.onnx and decode.onnx; return the two graphs."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = read_spec(read_json(checkpoint / "config.json"))
    index = folder / "weights.json"
    write_htp_weights(spec, checkpoint, folder / "weights.data", index)
    for graph, count in (("prefill", tokens), ("decode", 1)):
        write_decoder(spec, count, context, index, folder / f"{graph}.onnx")
    return graphs_of(folder)


def graphs_of(folder: Path) -> dict[str, Path]:
    """Return the two graphs of a folder, by name."""
    return {graph: folder / f"{graph}.onnx" for graph in ("prefill", "decode")}


def float_pair(
    checkpoint: Path, tokens: int = CHUNK, context: int = CONTEXT, mask: float = -10000.0
) -> GraphPair:
    """Return what a decoder needs to know of the fp32 graphs of a checkpoint."""
    spec = read_spec(read_json(checkpoint / "config.json"))
    borders = dict.fromkeys(border_names(spec.layers), Border(np.dtype(np.float32)))
    return GraphPair(spec, tokens, context, mask, borders)


def runner_of(folder: Path) -> CpuRunner:
    """Return a runner of the two graphs of a folder."""
    return CpuRunner(graphs_of(folder), threads=2)


def token_ids(count: int, seed: int = 0, vocab: int = 512) -> list[int]:
    """Return ids without the special tokens 0 to 2."""
    return np.random.default_rng(seed).integers(3, vocab, count).tolist()


def token_record(index: int, count: int, prompt_length: int = 1) -> TokenRecord:
    """Return a record of `count` tokens, its index the seed."""
    return TokenRecord(
        index, tuple(token_ids(count, index)), prompt_length, f"prompt {index}", f"answer {index}"
    )


def write_records(path: Path, records: Sequence[TokenRecord], context: int = CONTEXT) -> Path:
    """Write records for a program and return the path."""
    write_token_records(path, context, records)
    return path


def calibration_ids() -> list[list[int]]:
    """Return records of many lengths, the first three as long as the context."""
    lengths = [64, 64, 64, 60, 48, 33, 32, 31, 20, 16, 9, 5, 4, 2]
    return [token_ids(count, seed) for seed, count in enumerate(lengths)]


def quantize_tiny(checkpoint: Path, graphs: dict[str, Path], output: Path) -> Path:
    """Quantise a tiny model's graphs; return `output`."""
    calibrate_and_quantize(
        graphs,
        read_spec(read_json(checkpoint / "config.json")),
        calibration_ids(),
        CHUNK,
        CONTEXT,
        W8A16,
        2,
        output,
    )
    return output
