"""Settings of Sphinx for the site; `make docs` runs it on the copy that tools/docs/site.py makes."""

import re
from pathlib import Path

version_header = (Path(__file__).resolve().parent / "version.h").read_text()
project = "meshtorch"
author = "the authors of meshtorch"
release = version = re.search(r'MESHTORCH_VERSION "([^"]+)"', version_header)[1]
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header", "misc.highlighting_failure"]  # programs with … in the place of code
exclude_patterns = ["tests", "examples", "tools", "benchmarks"]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "undoc-members": False}
highlight_language = "none"
html_theme = "furo"
html_title = "meshtorch"
html_copy_source = False
html_show_sphinx = False
