"""Errors of failed jobs are found in their logs."""

import os

from snapbake.job_logs import find_errors


def test_only_new_logs_that_end_in_an_error(tmp_path):
    def log(name, text, age=0.0):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        os.utime(path, (1000 - age, 1000 - age))
        return path

    failed = log("compile_graph/a.log", "compiling\nerror: too large; take a larger chip\n")
    log("compile_graph/b.log", "error: one try failed\nthe second went well\n")
    log("compile_graph/old.log", "error: of an earlier build\n", age=100)
    log("compile_graph/empty.log", "")
    log("compile_graph/notes.txt", "error: not a log\n")
    assert find_errors(tmp_path, 990) == [(failed, "error: too large; take a larger chip")]


def test_the_end_of_a_traceback_is_an_error_too(tmp_path):
    log = tmp_path / "simplify_graph.log"
    log.write_text("Traceback (most recent call last):\nModuleNotFoundError: No module named 'x'\n")
    assert find_errors(tmp_path, 0) == [(log, "ModuleNotFoundError: No module named 'x'")]


def test_no_logs_yet(tmp_path):
    assert find_errors(tmp_path / "logs", 0) == []
