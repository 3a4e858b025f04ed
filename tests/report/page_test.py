"""The pages of `inspect --html` and `train --report` in headless Chromium: what they show is what the library says.

    page_test.py MESHTORCH_LLAMA TEXT
"""

import json
import re
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import chromium

SKIPPED = 77
LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}
UNEVEN = {**LLAMA_70B, "hidden_size": 20, "intermediate_size": 26, "num_hidden_layers": 4, "num_attention_heads": 5, "num_key_value_heads": 5,
          "vocab_size": 100, "max_position_embeddings": 64}
LOOK = """
  const text = (id) => document.getElementById(id).innerText;
  const click = (selector) => { const found = document.querySelector(selector); if (!found) throw Error("no " + selector); found.click(); };
  const choose = (rank) => { const input = document.getElementById("rank-number"); input.value = rank; input.dispatchEvent(new Event("change")); };
  const weight = (name) => {
    const search = document.getElementById("search");
    search.value = name; search.dispatchEvent(new Event("input"));
    click(`[data-parameter="${name}"]`);
    const drawing = document.getElementById("drawing");
    if (!drawing.open) throw Error("the drawing is not open");
    const shown = {name: text("drawing-name"), indices: text("drawing-indices"), shape: text("drawing-shape"), blocks: drawing.querySelectorAll("rect.block").length, here: drawing.querySelectorAll("rect.here").length};
    drawing.close();
    return shown;
  };
  const sections = () => [...document.querySelectorAll("main > section h2")].map((title) => title.textContent);
"""


def run(*arguments):
    done = subprocess.run([LLAMA, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def config(folder, values):
    file = Path(folder) / "config.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(values))
    return file


def held_lines(text):
    """{parameter: (shape, local shape)} as `inspect` prints them; layers are one line."""
    lines = re.findall(r"^(\S+weight)(?: x \d+)? +\(([\d, ]+)\) +\[[^\]]*\] +\(([\d, ]+)\)", text, re.MULTILINE)
    return {name: (whole, local) for name, whole, local in lines}


def chunk(size, parts, index):
    each = -(-size // parts)
    return min(index * each, size), min((index + 1) * each, size)


class Inspection(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.page = Path(self.folder.name) / "page.html"

    def test_70b_on_1024_ranks(self):
        model = config(self.folder.name, LLAMA_70B)
        options = ["inspect", "--model", model, "--world-size", 1024, "--tp", 8]
        begin = time.monotonic()
        printed = run(*options, "--html", self.page)
        seconds, size = time.monotonic() - begin, self.page.stat().st_size
        print(f"70B on 1,024 ranks: {seconds:.1f} s, {size} bytes")
        self.assertLess(size, 2_000_000)
        shown = chromium.look(self.page, LOOK + """
          const bytes = {};
          for (const rank of [0, 13, 1023]) { choose(rank); bytes[rank] = Number(document.querySelector("#rank-panel [data-bytes]").dataset.bytes); }
          const grid = document.querySelectorAll("button.rank").length;
          click("button.rank[data-rank='9']");
          const nine = text("rank-panel");
          choose(1021);
          return {sections: sections(), bytes, grid, nine, weight: weight("model.embed_tokens.weight"), down: weight("model.layers.79.mlp.down_proj.weight"),
                  communication: document.getElementById("communication").textContent, memory: text("memory")};
        """)
        self.assertEqual(shown["sections"], ["Mesh", "Modules", "Communication", "Memory"])
        self.assertLess(shown["grid"], 200, "a sample of the ranks")
        self.assertIn("with ranks 8 – 15", shown["nine"])
        self.assertIn("with ranks 1, 9, 17", shown["nine"])
        for rank, bytes_shown in shown["bytes"].items():
            self.assertIn(f"on this rank {bytes_shown} bytes", run(*options, "--rank", rank))
        begin, end = chunk(128256, 8, 1021 % 8)
        self.assertEqual(shown["weight"]["indices"], f"[{begin}:{end}, 0:8192]")
        self.assertEqual((shown["weight"]["blocks"], shown["weight"]["here"]), (8, 1))
        begin, end = chunk(28672, 8, 1021 % 8)
        self.assertEqual(shown["down"]["indices"], f"[0:8192, {begin}:{end}]")
        for name, calls in re.findall(r"^\w+ +(\w+) +(\d+) +\d+$", printed, re.MULTILINE):
            self.assertIn(name, shown["communication"])
        total = re.search(r"^all +(\d+) +(\d+)$", printed, re.MULTILINE)
        self.assertIn(f"calls {total[1]} collectives", shown["communication"])
        self.assertIn("ranks 0 – 1,023", shown["memory"])

    def test_uneven_shards_are_those_of_the_library(self):
        model = config(self.folder.name, UNEVEN)
        options = ["inspect", "--model", model, "--world-size", 6, "--tp", 3, "--sequence", 10]
        run(*options, "--html", self.page)
        names = ["model.embed_tokens.weight", "model.layers.2.mlp.down_proj.weight", "model.layers.3.self_attn.q_proj.weight", "lm_head.weight"]
        shown = chromium.look(self.page, LOOK + f"""
          const all = {{}};
          for (let rank = 0; rank < 6; ++rank) {{
            click(`button.rank[data-rank='${{rank}}']`);
            all[rank] = {{bytes: Number(document.querySelector("#rank-panel [data-bytes]").dataset.bytes), weights: {json.dumps(names)}.map(weight)}};
          }}
          return all;
        """)
        for rank in range(6):
            printed = run(*options, "--rank", rank)
            lines = held_lines(printed)
            self.assertIn(f"on this rank {shown[str(rank)]['bytes']} bytes", printed)
            for weight in shown[str(rank)]["weights"]:
                local = lines[re.sub(r"\.\d+\.", ".*.", weight["name"])][1]
                self.assertEqual(weight["shape"], local.replace(", ", " × "), weight["name"])

    def test_names_are_text(self):
        evil = "<img src=x onerror=document.body.dataset.evil=1><script>document.body.dataset.evil=1<"
        model = config(Path(self.folder.name) / evil, UNEVEN)
        run("inspect", "--model", model.parent, "--world-size", 2, "--tp", 1, "--sequence", 10, "--html", self.page)
        shown = chromium.look(self.page, LOOK + """
          await new Promise((done) => setTimeout(done, 500));
          return {title: document.querySelector("h1").textContent, page: document.title, images: document.images.length, evil: document.body.dataset.evil ?? null};
        """)
        self.assertIn(evil, shown["title"])
        self.assertIn(evil, shown["page"])
        self.assertEqual((shown["images"], shown["evil"]), (0, None))

    def test_the_keyboard_goes_from_rank_to_rank(self):
        run("inspect", "--model", config(self.folder.name, UNEVEN), "--world-size", 6, "--tp", 3, "--sequence", 10, "--html", self.page)
        shown = chromium.look(self.page, LOOK + """
          const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
          const first = document.querySelector("button.rank[tabindex='0']");
          first.focus();
          const went = [first.dataset.rank];
          for (const key of ["ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp", "ArrowUp"]) { press(key); went.push(document.activeElement.dataset.rank); }
          return went;
        """)
        self.assertEqual(shown, ["0", "1", "4", "3", "0", "0"])


class Training(unittest.TestCase):
    def test_a_run_on_four_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            page, log = Path(folder) / "run.html", Path(folder) / "log.jsonl"
            printed = run("train", "--data", TEXT, "--steps", 12, "--hidden-size", 16, "--intermediate-size", 21, "--layers", 3, "--sequence-length", 13,
                          "--batch-size", 4, "--dp", 2, "--tp", 2, "--threads", "--comm-table", "--report", page, "--log", log)
            shown = chromium.look(page, LOOK + """
              const share = document.querySelectorAll("#time tbody tr").length;
              const lanes = [...document.querySelector("#time table").querySelectorAll("tbody th")].map((rank) => rank.textContent);
              document.querySelector("#time canvas").dispatchEvent(new KeyboardEvent("keydown", {key: "+"}));
              return {sections: sections(), communication: document.getElementById("communication").textContent, loss: text("training"), memory: text("memory"), time: text("time"), share, lanes,
                      moves: document.querySelectorAll(".move").length, modules: document.querySelectorAll("[data-parameter]").length};
            """)
            steps = [json.loads(line) for line in log.read_text().splitlines()]
        self.assertEqual(shown["sections"], ["Mesh", "Modules", "Communication", "Time", "Loss and throughput", "Memory"])
        first = float(format(steps[0]["loss"], ".4g"))
        self.assertIn(f"The loss went from {first:g} to ", shown["loss"])
        for collective, calls in re.findall(r"^(all_\w+|reduce_\w+) +(\d+) +\d+ +[\d.]+$", printed.split("What rank 0 communicates")[1], re.MULTILINE):
            self.assertRegex(shown["communication"], rf"{collective}{calls}\d*\.?\d* ?[kM]?B", f"{collective} x {calls}")
        self.assertEqual(shown["lanes"], ["0", "1", "2", "3"])
        self.assertGreater(shown["share"], 5)
        self.assertGreater(shown["moves"], 4)
        self.assertIn("Measured peak", shown["memory"])


if __name__ == "__main__":
    if chromium.find() is None:
        print("skipped: " + chromium.MISSING)
        sys.exit(SKIPPED)
    LLAMA, TEXT = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1], verbosity=2)
