"""Waiting for other processes."""

import time


def wait_for(condition, process=None):
    """Wait until a condition holds, at most until pytest-timeout ends the test; fail if a process ends before."""
    while not condition():
        assert process is None or process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.002)
