"""The JSON files of a model folder, which must be objects that JSON can say."""

import json
from pathlib import Path
from typing import Any

from snapbake.errors import SnapbakeError
from snapbake.files import read_json


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; raise SnapbakeError for anything else and for NaN or Infinity in it."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise SnapbakeError(
            f"{path} holds {type(content).__name__} where an object is needed; copy the file again"
        )
    try:
        json.dumps(content, allow_nan=False)
    except ValueError as error:
        raise SnapbakeError(
            f"{path} holds NaN or Infinity, which JSON does not have; write the number meant"
        ) from error
    return content
