"""Run the commands of the demo, side by side where that is quicker, each once."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import write_text
from nnunet_labelset.nnunet.logs import telling


@dataclass
class Command:
    """A command at work; nnU-Net's output goes to a file, and what tells most to the screen."""

    shown: str
    process: subprocess.Popen
    log: Path
    title: str = ""
    seen: int = 0

    def lines(self) -> list[str]:
        """The complete lines of the output so far."""
        return self.log.read_text(errors="replace").split("\n")[:-1] if self.log.is_file() else []

    def show_progress(self) -> None:
        lines = self.lines()
        for line in lines[self.seen :]:
            if text := telling(line):
                print(f"  {self.title}{text}", flush=True)
        self.seen = len(lines)

    def finish(self) -> None:
        """Leave a mark, or say what went wrong."""
        self.show_progress()
        if self.process.returncode == 0:
            write_text(self.log.with_suffix(".done"), self.shown)
            return
        for line in self.lines()[-15:]:
            print(f"  {line}", file=sys.stderr)
        raise LabelSetError(
            f"failed: {self.shown}; fix what it says and run the demo again, which goes on from here"
        )

    def stop(self) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self.process.kill()


@dataclass
class Commands:
    """Shows and runs commands. A finished one leaves a mark, so that a second run goes on where the
    first one ended.
    """

    logs: Path
    together: int
    environment: dict[str, str] = field(default_factory=dict)
    step: int = 0

    def run(self, commands: Iterable[Sequence[object]], **environment: str) -> None:
        """Run the commands, in order, so many at a time."""
        waiting = deque([list(map(str, command)) for command in commands])
        several = len(waiting) > 1
        running: list[Command] = []
        try:
            while waiting or running:
                while waiting and len(running) < self.together:
                    command = self._start(waiting.popleft(), environment, several)
                    if command is not None:
                        running.append(command)
                for command in list(running):
                    command.show_progress()
                    if command.process.poll() is not None:
                        running.remove(command)
                        command.finish()
                time.sleep(0.2)
        finally:
            for command in running:
                command.stop()

    def _start(
        self, words: list[str], environment: dict[str, str], several: bool
    ) -> Command | None:
        self.step += 1
        shown = shlex.join([*(f"{name}={value}" for name, value in environment.items()), *words])
        print(f"$ {shown}", flush=True)
        log = self.logs / f"{self.step:02d}_{words[0]}.txt"
        mark = log.with_suffix(".done")
        if mark.is_file() and mark.read_text("utf-8") == shown:
            print("  done before", flush=True)
            return None
        log.parent.mkdir(parents=True, exist_ok=True)
        quiet = words[0].startswith("nnUNet")
        with log.open("w") if quiet else contextlib.nullcontext() as file:
            process = subprocess.Popen(
                [str(Path(sys.executable).parent / words[0]), *words[1:]],
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self.environment, **environment},
                stdout=file,
                stderr=subprocess.STDOUT if quiet else None,
            )
        title = f"{words[words.index('-tr') + 1]}: " if several and "-tr" in words else ""
        return Command(shown, process, log, title)
