"""Work on many cases in spawned processes, with a progress bar, and without leftovers when it is
interrupted.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from typing import TypeVar

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.progress import progress

Item = TypeVar("Item")
Result = TypeVar("Result")


def default_processes() -> int:
    """All cores that this process may use, at most nnU-Net's usual 8."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return min(8, cores)


def map_parallel(
    function: Callable[[Item], Result], items: Sequence[Item], processes: int, description: str
) -> Iterator[tuple[Item, Result]]:
    """`(item, function(item))` for every item, as they are finished.

    One process means this process. After an interrupt the cases at work are finished, so that no
    worker is stopped in the middle of writing, and no others are begun; a second interrupt ends the
    workers at once. A worker that the system kills (memory) is an error here, where
    `multiprocessing.Pool` would wait for ever. What goes wrong in `function` without being a
    `LabelSetError` becomes one that names the item.
    """
    if processes < 1:
        raise LabelSetError(f"Expected -np to be at least 1, but got {processes}")
    work = partial(_work, function, description)
    if min(processes, len(items)) <= 1:
        for item in progress(items, description):
            yield item, work(item)
        return
    executor = ProcessPoolExecutor(
        min(processes, len(items)), multiprocessing.get_context("spawn"), initializer=_start_worker
    )
    interrupted = False
    others = set(multiprocessing.active_children())
    futures: dict[Future[Result], Item] = {}
    try:
        with _interrupts_wait():
            futures |= {executor.submit(work, item): item for item in items}
        for future in progress(as_completed(futures), description, len(futures)):
            yield futures[future], future.result()
    except BrokenProcessPool:
        raise LabelSetError(
            f"{description}: a worker process died, perhaps out of memory: try a smaller -np"
        ) from None
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        try:
            if interrupted:
                print(
                    "interrupted: finishing running cases (press Ctrl-C again to abort)",
                    file=sys.stderr,
                    flush=True,
                )
            # Not `future.cancel()`: the thread of the executor would stumble over it when the
            # workers are killed.
            executor.shutdown(wait=True, cancel_futures=True)
        except KeyboardInterrupt:
            for worker in set(multiprocessing.active_children()) - others:
                worker.kill()  # files are written whole or not at all
            # Its thread has ended before Python ends: else both may close the same pipe, which
            # prints a traceback.
            executor.shutdown(wait=True)
            raise


def _work(function: Callable[[Item], Result], description: str, item: Item) -> Result:
    try:
        return function(item)
    except LabelSetError:
        raise
    except Exception as error:
        raise LabelSetError(
            f"{description} {_item_name(item)}: {type(error).__name__}: {error}"
        ) from error


def _item_name(item: object) -> str:
    """Return the name of an item: its own, that of its case, or that of its first part."""
    parts = [getattr(item, "name", None), getattr(item, "case", None)]
    if isinstance(item, tuple):
        parts += item[:1]
    for part in parts:
        if part is not None:
            return part if isinstance(part, str) else _item_name(part)
    return str(item)


def exit_when_terminated() -> None:
    """`kill`, `scancel` and `timeout` then end the program as an exception would: what it started
    ends with it.
    """
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    ):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """An interrupt that comes while workers start is answered afterwards, not lost.

    The workers inherit the mask: one that is still importing would print a traceback. It is for
    POSIX; Windows has no such mask.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # starting it later would lift the mask (Python 3.12 and older)
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker() -> None:
    """Leave interrupts to the parent, and end with it: when it is killed, nobody else would stop
    its workers.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
