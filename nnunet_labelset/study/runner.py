"""Run the commands of the demo, side by side where that is quicker, each once."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import write_text
from nnunet_labelset.nnunet.logs import EPOCH, telling


@dataclass
class Command:
    """A running command. The output of a quiet one goes to `log`, and its main lines to the screen.

    A training shows a bar of its epochs instead.
    """

    shown: str
    process: subprocess.Popen
    log: Path
    title: str = ""
    bar: tqdm | None = None
    seen: int = 0

    def lines(self) -> list[str]:
        """The complete lines of the output so far."""
        return self.log.read_text(errors="replace").split("\n")[:-1] if self.log.is_file() else []

    def show_progress(self) -> None:
        lines = self.lines()
        new_lines = lines[self.seen :]
        self.seen = len(lines)
        if self.bar is not None:
            show_epochs(self.bar, new_lines)
            return
        for line in new_lines:
            if text := telling(line):
                _print_above_bars(f"  {self.title}{text}")

    def finish(self) -> None:
        """Leave a mark, or say what went wrong."""
        self.show_progress()
        self.close_bar()
        if self.process.returncode == 0:
            write_text(self.log.with_suffix(".done"), self.shown)
            return
        for line in self.lines()[-15:]:
            print(f"  {line}", file=sys.stderr)
        raise LabelSetError(
            f"failed: {self.shown}; fix the problem and run the demo again: it continues from here"
        )

    def close_bar(self) -> None:
        """Leave the bar as it is; without a terminal, print one line instead."""
        if self.bar is None:
            return
        is_trained = self.process.returncode == 0
        if is_trained and self.bar.disable:
            _print_above_bars(f"  {self.title}trained")
        elif is_trained:
            self.bar.set_postfix_str("trained")
            self.bar.update(self.bar.total - self.bar.n)
        self.bar.close()

    def stop(self) -> None:
        self.close_bar()
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self.process.kill()


def show_epochs(bar: tqdm, lines: Iterable[str]) -> None:
    """Move the bar to the last epoch that the lines begin: so many are finished."""
    for line in lines:
        if match := EPOCH.search(line):
            bar.update(int(match[1]) - bar.n)
        elif (telling(line) or "").startswith("predicting"):
            bar.update(bar.total - bar.n)
            bar.set_postfix_str("validating")


@dataclass
class Commands:
    """Shows and runs commands. A finished one leaves a mark, so that a second run goes on where the
    first one ended.
    """

    logs: Path
    together: int
    environment: dict[str, str] = field(default_factory=dict)
    step: int = 0

    def run(
        self,
        commands: Iterable[Sequence[object]],
        epochs: int | None = None,
        is_quiet: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Run the commands, in order, `together` at a time.

        Trainings of so many `epochs` show a bar. The output of quiet commands goes to the logs, as
        that of nnU-Net always does.
        """
        waiting = deque([list(map(str, command)) for command in commands])
        running: list[Command] = []
        try:
            while waiting or running:
                while waiting and len(running) < self.together:
                    command = self._start(waiting.popleft(), environment or {}, is_quiet)
                    if command is None:
                        continue
                    running.append(command)
                    if epochs is not None:
                        command.bar = _epoch_bar(command.title, epochs)
                _look_after(running)
                time.sleep(0.2)
        finally:
            for command in running:
                command.stop()

    def _start(
        self, words: list[str], environment: Mapping[str, str], is_quiet: bool
    ) -> Command | None:
        self.step += 1
        shown = shlex.join([*(f"{name}={value}" for name, value in environment.items()), *words])
        _print_above_bars(f"$ {shown}")
        log = self.logs / f"{self.step:02d}_{words[0]}.txt"
        mark = log.with_suffix(".done")
        if mark.is_file() and mark.read_text("utf-8") == shown:
            _print_above_bars("  done before")
            return None
        log.parent.mkdir(parents=True, exist_ok=True)
        to_log = is_quiet or words[0].startswith("nnUNet")
        with log.open("w") if to_log else contextlib.nullcontext() as file:
            process = subprocess.Popen(
                [str(Path(sys.executable).parent / words[0]), *words[1:]],
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self.environment, **environment},
                stdout=file,
                stderr=subprocess.STDOUT if to_log else None,
            )
        title = f"{words[words.index('-tr') + 1]}: " if "-tr" in words else ""
        return Command(shown=shown, process=process, log=log, title=title)


def _look_after(running: list[Command]) -> None:
    """Show how far the commands are, and take out those that have ended."""
    for command in list(running):
        command.show_progress()
        if command.process.poll() is not None:
            running.remove(command)
            command.finish()


def _print_above_bars(text: str) -> None:
    tqdm.write(text)
    sys.stdout.flush()  # the commands write to the same place


def _epoch_bar(title: str, epochs: int) -> tqdm:
    return tqdm(
        desc=f"  {title.removesuffix(': ')}",
        total=epochs,
        unit="epoch",
        disable=None,  # without a terminal
        bar_format="{desc}: {n_fmt}/{total_fmt} epochs |{bar:20}| {remaining} left {postfix}",
    )
