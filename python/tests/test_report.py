"""The report page from Python: its data, and the page in headless Chromium where that is installed."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from meshtorch.debug import (
    CommDebugMode,
    DecisionLog,
    KeptMemory,
    TraceMode,
    estimate_memory,
    gather_memory,
    memory_of,
    write_report,
)
from meshtorch.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch import nn

sys.path.append(str(Path(__file__).parents[2] / "tests" / "report"))
import chromium


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 9), nn.Linear(9, 4)

    def forward(self, x):
        return self.down(self.up(x).relu())


PLAN = {"up": ColwiseParallel(), "down": RowwiseParallel()}


def data_of(page):
    """The JSON inside the page."""
    return json.loads(re.search(r'<script type="application/json" id="data">\n(.*?)\n</script>', page.read_text(), re.DOTALL)[1])


def step(net, optimizer):
    optimizer.zero_grad()
    net(torch.ones(2, 4, requires_grad=True)).sum().backward()
    optimizer.step()


def write_run(path, w):
    """A page with every section, by the first rank of the run; on the fake group by the one there is."""
    net = parallelize_module(Net(), w.mesh(names=("tp",)), PLAN)
    optimizer = torch.optim.AdamW(net.parameters())
    step(net, optimizer)
    with CommDebugMode() as comm, DecisionLog() as decisions:
        step(net, optimizer)
    with TraceMode() as trace:
        step(net, optimizer)
    memory, traces = gather_memory(memory_of(net, optimizer)), trace.gather()
    if w.kind == "fake" or w.rank == 0:
        write_report(path, net, title="A <b>net</b>", facts={"made for": "a test"}, plan=PLAN, comm=comm, comm_of="One step", decisions=decisions,
                     traces=traces, steps=[{"step": i, "loss": 1 / i, "tokens_per_second": 5.0} for i in range(1, 9)], memory=memory)
    return comm, optimizer


def test_the_data_are_those_of_the_run(fake_world, tmp_path):
    page = tmp_path / "page.html"
    comm, optimizer = write_run(page, fake_world)
    data = data_of(page)
    assert data["title"] == "A <b>net</b>" and data["facts"] == [["made for", "a test"]]
    assert data["rank"] == 1 and data["mesh"]["shape"] == [2]
    assert [part["name"] for part in data["modules"]["parts"]] == ["", "up", "down"]
    assert data["modules"]["parts"][1]["style"].startswith("ColwiseParallel(")
    layout = data["modules"]["layouts"][data["modules"]["parameters"][0]["layout"]]
    assert layout["shape"] == [9, 4] and layout["dims"][0]["held"] == [[0, 5], [5, 9]]
    counts = comm.get_comm_counts()
    assert {name: numbers[0] for name, numbers in data["communication"]["collectives"].items()} == dict(counts)
    assert "Net.down" in data["communication"]["modules"]
    assert data["training"]["loss"][3] == 0.25
    assert any(entry["module"] == "Net.down" for entry in data["redistributions"]["entries"])
    assert "Net.up" in data["trace"]["modules"]
    here = 4 * (4 * 4 + 4 + 4 * 4 + 4)  # float32: 4 of 9 rows and their biases, 4 of 9 columns, the whole bias
    assert data["memory"]["ranks"][1]["parameters"] == here
    assert data["memory"]["ranks"][1]["optimizer"] >= 2 * here


def test_ranks_gather_what_each_has(ranks, tmp_path):
    if ranks.kind == "fake":
        pytest.skip("nothing is gathered there")
    path = tmp_path / "page.html"

    ranks(lambda w: write_run(path, w) and None, size=2) if ranks.kind == "threads" else ranks(_WriteRun(str(path)), size=2)
    data = data_of(path)
    assert [rank["rank"] for rank in data["trace"]["ranks"]] == [0, 1]
    parameters = [rank["parameters"] for rank in data["memory"]["ranks"]]
    assert parameters == [4 * (5 * 4 + 5 + 5 * 4 + 4), 4 * (4 * 4 + 4 + 4 * 4 + 4)]


class _WriteRun:
    """A body that can be sent to another process."""

    def __init__(self, path):
        self.path = path

    def __call__(self, w):
        write_run(self.path, w)


def test_what_is_not_given_is_left_out(tmp_path):
    write_report(tmp_path / "page.html", title="empty")
    assert set(data_of(tmp_path / "page.html")) <= {"meshtorch", "title", "facts", "rank"}


def test_memory_of_a_plain_module():
    net = nn.Linear(10, 3, bias=False)
    with_grad = torch.optim.SGD(net.parameters(), momentum=0.9, lr=0.1)
    kept = KeptMemory()
    loss = net(torch.ones(2, 10)).exp().sum()
    assert kept.bytes() >= 24
    loss.backward()
    with_grad.step()
    estimate = estimate_memory(net, optimizer_numbers=1)[0]
    measured = memory_of(net, with_grad) if torch.distributed.is_initialized() else None
    assert estimate["parameters"] == estimate["gradients"] == estimate["optimizer"] == 120
    assert measured is None or measured["optimizer"] == 120


@pytest.mark.skipif(chromium.find() is None, reason=chromium.MISSING)
def test_the_page_in_a_browser(fake_world, tmp_path):
    page = tmp_path / "page.html"
    comm, _ = write_run(page, fake_world)
    shown = chromium.look(page, """
      const sections = [...document.querySelectorAll("main > section h2")].map((title) => title.textContent);
      document.querySelector("button.rank[data-rank='0']").click();
      const panel = document.getElementById("rank-panel").innerText;
      document.querySelector("[data-parameter='down.weight']").click();
      return {sections, panel, title: document.querySelector("h1").textContent, bold: document.querySelectorAll("h1 b").length,
              indices: document.getElementById("drawing-indices").textContent, communication: document.getElementById("communication").textContent};
    """)
    assert shown["sections"] == ["Mesh", "Modules", "Communication", "Time", "Loss and throughput", "Memory"]
    assert shown["title"] == "A <b>net</b>" and shown["bold"] == 0
    assert "Rank 0" in shown["panel"] and "[0:5, 0:4]" in shown["panel"]
    assert shown["indices"] == "[0:4, 0:5]"
    assert f"calls {comm.get_total_counts()} collectives" in shown["communication"]
