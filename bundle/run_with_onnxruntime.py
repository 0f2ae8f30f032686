"""Answers a question with this folder: ONNX Runtime and its QNN provider, on the NPU or emulated.

pip install numpy onnxruntime onnxruntime-qnn tokenizers
python run_with_onnxruntime.py "your question" [tokens]
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
import onnxruntime_qnn as qnn
from tokenizers import Tokenizer

here = Path(__file__).resolve().parent
template = json.loads((here / "prompt_template.json").read_text(encoding="utf-8"))
tokenizer = Tokenizer.from_file(str(here / "tokenizer.json"))
tables = dict(np.load(here / "tables.npz"))  # what goes in, as the graphs take it
cache = {name: tables.pop(name) for name in list(tables) if name.startswith("past_")}
chunk, context = int(tables["chunk"]), len(tables["cos"])

ort.register_execution_provider_library(qnn.get_ep_name(), qnn.get_library_path())
devices = [device for device in ort.get_ep_devices() if device.ep_name == qnn.get_ep_name()]
npu = [device for device in devices if device.device.type == ort.OrtHardwareDeviceType.NPU]
options = ort.SessionOptions()
options.add_provider_for_devices(npu or devices, {"backend_path": qnn.get_qnn_htp_path()})
graphs = {
    n: ort.InferenceSession(here / f"{g}.onnx", options)
    for n, g in ((chunk, "prefill"), (1, "decode"))
}


def step(count: int, ids: list[int], start: int) -> int:
    """Read `ids` with the graph that takes `count` tokens; return the likeliest next token."""
    past, end = context - count, start + len(ids)
    mask = np.full((1, 1, count, context), tables["masked"])
    mask[..., :start] = tables["allowed"]
    mask[..., past:][..., np.tri(count, dtype=bool)] = tables["allowed"]
    feeds = {"input_ids": np.zeros((1, count), np.int32), "attention_mask": mask}
    feeds["input_ids"][0, : len(ids)] = ids
    for name in ("cos", "sin"):
        feeds[f"position_ids_{name}"] = tables[name][None, None, start : start + count]
    for name, rows in cache.items():  # tokens are the last axis of keys
        feeds[f"{name}_in"] = rows[..., :past] if "key" in name else rows[:, :, :past]
    names = [output.name for output in graphs[count].get_outputs()]
    outputs = dict(zip(names, graphs[count].run(None, feeds), strict=True))
    for name, rows in cache.items():
        new, key = outputs[f"{name}_out"], "key" in name
        (rows if key else rows.swapaxes(2, 3))[..., start:end] = (
            new if key else new.swapaxes(2, 3)
        )[..., : len(ids)]
    return int(outputs["logits"][0, len(ids) - 1].argmax())


question = sys.argv[1].strip() if template["strip"] else sys.argv[1]
prompt = template["prefix"] + question + template["suffix"]
ids = tokenizer.encode(prompt, add_special_tokens=False).ids
length, answer = 0, []
while length < len(ids):  # whole chunks while they fit, then token by token
    count = chunk if length <= context - chunk else 1
    token = step(count, ids[length : length + count], length)
    length += min(count, len(ids) - length)
limit = int(sys.argv[2]) if len(sys.argv) > 2 else context
while token not in template["stop_ids"] and len(answer) < limit and length < context:
    answer.append(token)
    print(tokenizer.decode([token]), end="", flush=True)
    token, length = step(1, [token], length), length + 1
print()
