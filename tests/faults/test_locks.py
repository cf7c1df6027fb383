"""One process works in a folder at a time; a second is told who holds it, or waits."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from acls.errors import InputError
from acls.storage import hold

HOLDER = """
import sys
from acls.storage import hold
with hold(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """Another process that holds the lock until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path / "run" / ".lock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_process_is_refused_with_the_name_of_the_first(tmp_path, other):
    with pytest.raises(InputError, match=rf"run is in use by process {other.pid} on .* since .*--wait"):  # noqa: SIM117
        with hold(tmp_path / "run" / ".lock"):
            pytest.fail("two processes hold one lock")


def test_waiting_ends_when_the_other_process_does(tmp_path, other):
    entered = threading.Event()

    def enter():
        with hold(tmp_path / "run" / ".lock", wait=True):
            entered.set()

    waiting = threading.Thread(target=enter)
    waiting.start()
    assert not entered.wait(0.2)
    other.kill()  # a lock dies with its process
    waiting.join(30)
    assert entered.is_set()
    assert str(os.getpid()) in (tmp_path / "run" / ".lock").read_text()


def test_a_process_may_hold_its_own_lock_twice_and_it_ends_with_the_first(tmp_path):
    with hold(tmp_path / ".lock"):
        with hold(tmp_path / ".lock"):
            pass
        code = f"from acls.storage import hold\nwith hold({str(tmp_path / '.lock')!r}): pass"
        refused = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert f"in use by process {os.getpid()}" in refused.stderr
    subprocess.run([sys.executable, "-c", code], check=True)


FORKS = """
import os, sys, time
from acls.storage import hold
with hold(sys.argv[1]):
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(600)
    os._exit(0)
"""


def test_a_forked_reader_that_outlives_its_process_does_not_keep_the_lock(tmp_path):
    lock = tmp_path / "run" / ".lock"
    with subprocess.Popen([sys.executable, "-c", FORKS, lock], stdout=subprocess.PIPE, text=True) as process:
        child = int(process.stdout.readline())
        try:
            process.wait()
            os.kill(child, 0)  # it lives
            with hold(lock):
                pass
        finally:
            os.kill(child, signal.SIGKILL)
