"""Sessions on the CPU."""

from snapbake.cpu_sessions import cpu_options


def test_waiting_threads_sleep() -> None:
    options = cpu_options(3)
    assert options.intra_op_num_threads == 3
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
