#!/usr/bin/env python3
"""Run a QNN context binary on the HTP emulator, as qnn-net-run does on a phone."""

import argparse
import sys
from pathlib import Path

from snapbake import net_run
from snapbake.emulator import LIBRARY
from snapbake.errors import SnapbakeError, run_program

_DESCRIPTION = """\
Run a QNN context binary (.bin) on the HTP emulator, with the options and files of Qualcomm's
qnn-net-run. It needs Linux x86_64 and the package onnxruntime-qnn, no SDK and no phone."""

_EPILOG = """\
input list:
  One inference a line: `name:=path` pairs separated by blanks, or one bare path for a graph
  with one input. A first line `%name name ...` (or `#name ...`) chooses the outputs to write.
  Relative paths are relative to the working folder.

files:
  Raw elements, little-endian, without a header. By default float32 files are read and written,
  and the tool quantises, dequantises and casts; with the native options they hold the tensor's
  own elements, codes for a quantised tensor. Integer tensors that are not quantised
  (input_ids, int32) are read and written in their own type in both cases.

results:
  OUTPUT_DIR/Result_<n>/<tensor>.raw, n counted from 0; with several graphs in the binary
  OUTPUT_DIR/<graph>/Result_<n>/<tensor>.raw. They appear when every inference has ended well.

example:
  python scripts/net_run.py --retrieve_context prefill.bin --input_list input_list.txt \\
      --use_native_input_files --use_native_output_files --output_dir output"""


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and run the binary."""
    parser = argparse.ArgumentParser(
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--retrieve_context",
        type=Path,
        required=True,
        metavar="BIN",
        help="the context binary, of one or several graphs that share no weights",
    )
    parser.add_argument(
        "--input_list",
        required=True,
        metavar="LIST[,LIST...]",
        help=f"input lists, one a graph in the binary's order; {net_run.SKIP} skips a graph",
    )
    parser.add_argument(
        "--output_dir",
        type=Path,
        default=Path("output"),
        metavar="DIR",
        help="folder for the results (default: ./output)",
    )
    parser.add_argument(
        "--use_native_input_files",
        action="store_true",
        help="input files hold the tensors' own elements instead of float32",
    )
    parser.add_argument(
        "--use_native_output_files",
        action="store_true",
        help="write the tensors' own elements instead of float32",
    )
    parser.add_argument(
        "--backend",
        default=LIBRARY,
        metavar="LIB",
        help=f"accepted for qnn-net-run's sake; only {LIBRARY} is possible",
    )
    args = parser.parse_args(argv)
    if Path(args.backend).name != LIBRARY:
        raise SnapbakeError(
            f"--backend {args.backend} is not possible: this program runs the HTP emulator of "
            f"{LIBRARY} only; leave the option out"
        )
    lists = [
        None if name == net_run.SKIP else net_run.parse_input_list(Path(name))
        for name in args.input_list.split(",")
    ]
    net_run.run_binary(
        args.retrieve_context,
        lists,
        args.output_dir,
        native_inputs=args.use_native_input_files,
        native_outputs=args.use_native_output_files,
        report=lambda line: print(line, file=sys.stderr, flush=True),
    )


if __name__ == "__main__":
    run_program(main)
