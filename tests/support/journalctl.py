"""A journalctl of our own: the entries of a file, behind the cursor of another."""

import json
import os
import sys
from pathlib import Path

options = dict(option.partition("=")[::2] for option in sys.argv[1:])
file = Path(options["--cursor-file"])
cursor = int(file.read_text()) if file.exists() else -1
entries = [json.loads(line) for line in Path(os.environ["FAKE_JOURNAL"]).read_text().splitlines()]
entries = [entry for entry in entries if int(entry["__CURSOR"]) > cursor]
if "--lines" in options:
    entries = entries[-int(options["--lines"]) :]
for entry in entries:
    print(json.dumps(entry), flush=True)
    if os.environ.get("FAKE_JOURNAL_DIES") == entry["__CURSOR"]:
        sys.exit(1)  # before it writes the cursor
if entries:
    partial = file.with_name(f"{file.name}.new")  # nobody sees half of it
    partial.write_text(entries[-1]["__CURSOR"])
    partial.replace(file)
