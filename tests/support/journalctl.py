"""A journalctl of our own: the entries of a file, also those that come, behind a cursor or from now on."""

import json
import os
import sys
import time

FILE = os.environ["FAKE_JOURNAL"]
cursor = next((one.split("=", 1)[1] for one in sys.argv if one.startswith("--cursor=")), None)
newest = "--lines=1" in sys.argv
with open(f"{FILE}.asked", "a") as asked:
    asked.write(json.dumps(sys.argv[1:]) + "\n")


def entries() -> list[dict[str, str]]:
    with open(FILE) as file:
        return [json.loads(line) for line in file.read().splitlines()]


follow = "--follow" in sys.argv
told = -1
first = True
while True:
    if os.path.exists(f"{FILE}.dies"):
        os.remove(f"{FILE}.dies")
        sys.exit("the journal was closed")
    there = entries()
    found = [one for one in there if int(one["__CURSOR"]) > told]
    if follow:  # of the present boot alone
        found = [one for one in found if one.get("_BOOT_ID") == there[-1].get("_BOOT_ID")]
    if first and cursor is not None:
        found = [one for one in found if int(one["__CURSOR"]) >= int(cursor)]
    elif first and newest:
        found = found[-1:]
    for one in found:
        told, first = int(one["__CURSOR"]), False
        print(json.dumps(one), flush=True)
    if not follow:
        break
    if cursor is None and not found:
        first = False
    time.sleep(0.01)
