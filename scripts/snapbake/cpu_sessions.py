"""How onnxruntime runs on the CPU here."""

from onnxruntime.capi.onnxruntime_pybind11_state import SessionOptions


def cpu_options(threads: int) -> SessionOptions:
    """Return options of a session that computes with `threads` threads and logs errors only.

    Threads that wait are put to sleep. Spinning, the default, wins nothing here, since an operator
    takes far longer than waking a thread, and takes the processor from the jobs beside this one.
    """
    options = SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options
