"""The program in the README is examples/quick_start.cc, and prints what the README says: readme_test.py README PROGRAM BINARY"""

import pathlib
import re
import subprocess
import sys

readme, source, binary = sys.argv[1:]
text = pathlib.Path(readme).read_text()
shown = re.search(r"```cpp\n(.*?)```", text, flags=re.S)[1]
printed = re.search(r"It prints:\n\n```\n(.*?)```", text, flags=re.S)[1]
expected = pathlib.Path(source).read_text().split("\n", 1)[1]  # without the line that says what the file is
actual = subprocess.run([binary], capture_output=True, text=True, timeout=100, check=True).stdout
problems = []
if shown != expected:
    problems.append(f"the program in {readme} is not {source}")
if printed != actual:
    problems.append(f"{readme} says that it prints\n{printed}\nand it prints\n{actual}")
print("\n".join(problems) or "the README is true of its program")
sys.exit(bool(problems))
