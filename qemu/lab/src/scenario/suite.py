#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Runs the tests of rdma-core, as the distribution ships them with pyverbs, on a device.

suite.py DEVICE MODULE...: prints a line for each test, `ok NAME: passed` or `FAIL NAME: REASON`, and `done COUNT`. A test that says
that the device lacks what it needs is not counted, and named on standard error.

Each test runs in a process of its own: objects that one leaves behind must not be the next one's trouble, and one that crashes or
hangs costs one line.
"""

import gzip
import os
import select
import shutil
import signal
import sys
import tempfile
import unittest
from importlib import import_module
from pathlib import Path

SHIPPED = Path("/usr/share/doc/rdma-core/tests")
# Until a test counts as hung: a guard, not a measurement.
PATIENCE = 120


def unpack(folder):
    """Copies the tests, of which the packaging has compressed the larger files."""
    package = folder / "tests"
    shutil.copytree(SHIPPED, package)
    for packed in package.glob("*.gz"):
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()


def run(test):
    """What became of a test: a word and what is to be said about it."""
    result = unittest.TestResult()
    test.run(result)
    for word, found in (("FAIL", result.errors + result.failures), ("skip", result.skipped)):
        if found:
            text = found[0][1].strip().splitlines()
            return word, text[-1] if text else "no reason given"
    return "ok", "passed"


def run_apart(test):
    """Runs a test in a process of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.setsid()
        silence = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(silence, descriptor)
        word, text = run(test)
        os.write(writer, f"{word} {text}".encode()[:4000])
        os._exit(0)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], PATIENCE)
    answer = os.read(reader, 4096).decode(errors="replace") if ready else ""
    os.close(reader)
    if not ready:
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if answer:
        word, text = answer.split(" ", 1)
        return word, text
    return "FAIL", f"ended with wait status {status}" if ready else f"no end after {PATIENCE} s"


def cases_of(suite):
    """The tests of a suite of suites."""
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from cases_of(item)
        else:
            yield item


def main():
    """Runs the tests of the modules that are named."""
    device, names = sys.argv[1], sys.argv[2:]
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        unpack(Path(folder))
        sys.path.insert(0, folder)
        sys.argv[1:] = ["--dev", device, "--port", "1"]
        # As the stock runner does: the parser is a singleton of this module.
        sys.path.insert(0, str(Path(folder) / "tests"))
        import_module("args_parser").parser.parse_args()
        import_module("tests.args_parser").parser.parse_args()
        for name in names:
            module = import_module(f"tests.{name}")
            for test in cases_of(unittest.defaultTestLoader.loadTestsFromModule(module)):
                word, text = run_apart(test)
                line = f"{word} {test.id().removeprefix('tests.')}: {text.replace(': ', ' - ')}"
                if word == "skip":
                    print(line, file=sys.stderr, flush=True)
                    continue
                print(line, flush=True)
                count += 1
    print(f"done {count}", flush=True)


main()
