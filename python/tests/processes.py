"""Ranks as processes for tests: started once, given one function after another, never waited for without limit."""

import faulthandler
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from multiprocessing.connection import wait


# Processes are forked from one that has imported everything: that takes seconds and is done once.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["meshtorch", "torch.distributed.tensor"])


def _serve(rank, size, folder, backend, pipe):
    """What a process does: joins the group, then runs what comes through the pipe."""
    log = open(os.path.join(folder, f"stack_{rank}"), "w")
    faulthandler.register(signal.SIGUSR1, file=log, all_threads=True)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(folder, "store"), size)
    import meshtorch  # noqa: F401  registers the backend shm

    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    while (task := pipe.recv()) is not None:
        function, arguments = task
        try:
            pipe.send(("done", function(*arguments)))
        except BaseException:
            pipe.send(("failed", traceback.format_exc()))
    dist.destroy_process_group()


class Processes:
    """The ranks of one group of torch.distributed. After a failure they are gone: a test that failed leaves no state behind."""

    def __init__(self, size, backend="gloo"):
        self.size = size
        self._folder = tempfile.TemporaryDirectory(prefix="meshtorch_ranks_")
        self._pipes, self._processes = [], []
        for rank in range(size):
            here, there = _context.Pipe()
            process = _context.Process(target=_serve, args=(rank, size, self._folder.name, backend, there), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)
        self.is_alive = True

    def run(self, function, *arguments, limit=60.0, grace=5.0):
        """The results of function(*arguments) on every rank; AssertionError says what each rank did instead."""
        for pipe in self._pipes:
            pipe.send((function, arguments))
        reports = {}
        deadline = time.monotonic() + limit
        while len(reports) < self.size and (left := deadline - time.monotonic()) > 0:
            waiting = {self._pipes[rank]: rank for rank in range(self.size) if rank not in reports}
            for pipe in wait(waiting, timeout=left):
                rank = waiting[pipe]
                try:
                    reports[rank] = pipe.recv()
                except EOFError:
                    self._processes[rank].join(grace)
                    reports[rank] = ("died", f"exit code {self._processes[rank].exitcode}")
                if reports[rank][0] != "done":
                    deadline = min(deadline, time.monotonic() + grace)  # the others may wait for this one
        if all(reports.get(rank, ("",))[0] == "done" for rank in range(self.size)):
            return [reports[rank][1] for rank in range(self.size)]
        text = self._describe(reports)
        self.kill()
        raise AssertionError(text)

    def _describe(self, reports):
        lines = []
        for rank in range(self.size):
            if rank not in reports:
                os.kill(self._processes[rank].pid, signal.SIGUSR1)
        time.sleep(0.5)
        for rank in range(self.size):
            kind, text = reports.get(rank, ("did not answer in time; it was at", self._stack_of(rank)))
            lines.append(f"rank {rank} {kind}" + ("" if kind == "done" else f"\n{text}"))
        return "\n".join(lines)

    def _stack_of(self, rank):
        with open(os.path.join(self._folder.name, f"stack_{rank}")) as log:
            return log.read()

    def kill(self):
        self.is_alive = False
        for process in self._processes:
            process.kill()
            process.join()
        self._folder.cleanup()

    def stop(self, limit=10.0):
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(limit)
        self.kill()
