"""Opens a report page in headless Chromium, acts on it, and tells what it shows. Only Python's own library is needed."""

import html
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

MISSING = "Chromium was not found: run `apt-get install chromium`, or set MESHTORCH_CHROMIUM to the program"

_FIRST = """<script>
const seen = {errors: []};
addEventListener("error", (event) => seen.errors.push(event.message));
addEventListener("unhandledrejection", (event) => seen.errors.push(String(event.reason)));
for (const kind of ["error", "warn"]) console[kind] = (...words) => seen.errors.push(words.join(" "));
</script>"""
_LAST = """<script>
(async () => {
  try { seen.result = await (async () => { %s })(); } catch (error) { seen.errors.push(String(error.stack)); }
  const out = document.createElement("pre");
  out.id = "seen";
  out.textContent = JSON.stringify(seen);
  document.body.replaceChildren(out);
})();
</script>"""


def find():
    """The program, or None."""
    names = [os.environ.get("MESHTORCH_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"]
    return next((found for name in names if name and (found := shutil.which(name))), None)


def look(page, actions):
    """Runs `actions`, the body of an async function in JavaScript, in the page, and gives what it returns.

    An error on the console, or one that the page itself does not catch, fails."""
    text = Path(page).read_text()
    assert text.count("<head>") == 1 and text.rstrip().endswith("</html>")
    text = text.replace("<head>", "<head>" + _FIRST, 1)
    end = text.rindex("</body>")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "page.html"
        copy.write_text(text[:end] + _LAST % actions + text[end:])
        command = [find(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                   f"--user-data-dir={folder}/profile", "--window-size=1280,1600", "--virtual-time-budget=10000", "--dump-dom",
                   copy.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, f"the page did not finish:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    seen = json.loads(html.unescape(found[1]))
    assert not seen["errors"], seen["errors"]
    return seen.get("result")
