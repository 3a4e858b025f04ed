"""tools/packages.txt: every distribution has a package for every probe, and on this one the package has the probe in it."""

import pathlib
import re
import shutil
import subprocess
import sys

TABLE = pathlib.Path(sys.argv[1]) / "tools/packages.txt"
lines = [line.split() for line in TABLE.read_text().splitlines() if line.strip()]
header = next(line for line in lines if line[:2] == ["#", "probe"])
distributions = header[2:]
rows = [line for line in lines if line[0] != "#"]
problems = []

if distributions != ["debian-12", "debian-13", "ubuntu-22.04", "ubuntu-24.04"]:
    problems.append(f"the distributions are {distributions}")
for row in rows:
    if len(row) != 1 + len(distributions):
        problems.append(f"{row[0]}: {len(row) - 1} packages for {len(distributions)} distributions")
    problems += [f"{row[0]}: {package} is no package name" for package in row[1:] if not re.fullmatch(r"(pip:)?[a-z0-9][a-z0-9+.-]+", package)]

os_release = dict(re.findall(r'^(\w+)="?(.*?)"?$', pathlib.Path("/etc/os-release").read_text(), flags=re.M))
here = f"{os_release.get('ID')}-{os_release.get('VERSION_ID')}"
compared = 0
if here in distributions and shutil.which("dpkg"):
    for row in rows:
        package = row[1 + distributions.index(here)]
        path = row[0] if row[0].startswith("/") else shutil.which(row[0], path="/usr/bin:/bin")
        owner = subprocess.run(["dpkg", "-S", path or "none"], capture_output=True, text=True).stdout
        if not owner or package.startswith("pip:"):
            continue  # installed by other means
        compared += 1
        owners = [name.split(":")[0].strip() for name in owner.rsplit(": ", 1)[0].split(",")]
        if not any(name == package or name.startswith(package + "-") for name in owners):
            problems.append(f"{row[0]} is in {owner.strip()}, not in {package}")

print("\n".join(problems) or f"{len(rows)} probes, {compared} compared with the packages of {here}")
sys.exit(bool(problems))
