"""The files calibration.json and heldout.json: tokenised conversations."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from snapbake.errors import SnapbakeError
from snapbake.files import read_json, write_json


@dataclass(frozen=True)
class TokenRecord:
    """One conversation as the model reads it.

    `ids` are the tokens of the rendered conversation, cut off at the context; the first
    `prompt_length` of them are given to the model and the rest is the answer, at least one token.
    `prompt` and `answer` are the last question and its answer as the data has them, for people.
    `index` is the number of the record in its data set, from 0.
    """

    index: int
    ids: tuple[int, ...]
    prompt_length: int
    prompt: str
    answer: str


def write_token_records(path: Path, context: int, records: Sequence[TokenRecord]) -> None:
    """Write records that are at most `context` tokens long."""
    write_json(path, {"context": context, "records": [asdict(record) for record in records]})


def read_token_records(path: Path) -> tuple[int, list[TokenRecord]]:
    """Return the context length in tokens and the records of a file of `write_token_records`."""
    content = read_json(path)
    try:
        context = int(content["context"])
        records = [
            TokenRecord(
                index=int(record["index"]),
                ids=tuple(int(token) for token in record["ids"]),
                prompt_length=int(record["prompt_length"]),
                prompt=str(record["prompt"]),
                answer=str(record["answer"]),
            )
            for record in content["records"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise SnapbakeError(
            f"{path} is not a file of tokenised records; make it with select_records"
        ) from error
    for record in records:
        if not 0 < record.prompt_length < len(record.ids) <= context:
            raise SnapbakeError(
                f"{path} has a record {record.index} with a prompt of {record.prompt_length} of "
                f"{len(record.ids)} tokens in a context of {context}; make the file again with "
                "select_records"
            )
    return context, records
