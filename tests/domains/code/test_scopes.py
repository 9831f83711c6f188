"""Functions and classes: spans of real layouts, against Python's own tree and by eye."""

from __future__ import annotations

import ast
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from seqmlm.domains.code.levels import MODULE, innermost_scopes, scopes
from seqmlm.domains.code.lexers.source import SourceText

PYTHON = '''import os


@decorated
class Stack:
    """é"""

    size = 0

    @property
    def top(self):
        def inner():
            return 1
        return inner()


async def push(x):
    return x
'''
JAVA = """package a;
public class Stack<T> extends Base {
    private int[] items = {1, 2};
    // void no() {
    public <T> T pop(int n) throws IOException {
        if (n > 0) { return null; }
        for (int i = 0; i < n; i++) { run("void x() {"); }
        return new Runnable() { public void run() { go(); } };
    }
    Stack() { }
}
"""
GO = """func (s *Stack) Push(x int) (err error) {
	if err := s.check(x); err != nil { return err }
	return nil
}
type Stack struct { items []int }
"""
JAVASCRIPT = """const add = (a, b) => { return a + b; };
function sub(a, b) { return a - b }
list.forEach(function (x) { go(x) });
class A { method(x) { while (x) { x-- } } }
"""


def named(text: SourceText) -> dict[str, str]:
    return {scope.name: text[scope.start : scope.end] for scope in scopes(text)[1:]}


def test_python():
    text = SourceText(PYTHON, "python")
    found = scopes(text)
    assert [(scope.name, scope.kind) for scope in found] == [
        (MODULE, "module"),
        ("Stack", "class"),
        ("Stack.top", "function"),
        ("Stack.top.inner", "function"),
        ("push", "function"),
    ]
    spelled = named(text)
    assert spelled["Stack"].startswith("@decorated\nclass")
    assert spelled["Stack.top"].startswith("@property")
    assert spelled["Stack.top.inner"].endswith("return 1")
    assert spelled["push"] == "async def push(x):\n    return x"


def test_innermost():
    text = SourceText(PYTHON, "python")
    found = scopes(text)
    words = ("import", "size", "inner()\n", "return 1", "return inner", "return x")
    places = np.array([PYTHON.index(word) for word in words])
    names = [found[index].name for index in innermost_scopes(found, places)]
    assert names == [MODULE, "Stack", "Stack.top", "Stack.top.inner", "Stack.top", "push"]


def test_every_function_of_a_real_module_is_found():
    text = (Path(sysconfig.get_paths()["stdlib"]) / "argparse.py").read_text()
    nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    found = scopes(SourceText(text, "python"))[1:]
    assert len(found) == len(nodes) > 100
    for scope in found:
        assert scope.name.split(".")[-1] in text[scope.start : scope.end]


@pytest.mark.parametrize(
    ("code", "language", "names"),
    [
        (JAVA, "java", ["Stack", "Stack.pop", "Stack.pop.run", "Stack.Stack"]),
        (GO, "go", ["Push", "Stack"]),
        (JAVASCRIPT, "javascript", ["add", "sub", "A", "A.method"]),
        ("int main(void) {\n  return 0;\n", "c", ["main"]),
        ("x = {1: 2}\n", "ruby", []),
        ("def f(:\n  {", "python", []),
    ],
)
def test_braces(code, language, names):
    assert [scope.name for scope in scopes(SourceText(code, language))[1:]] == names


def test_brace_spans():
    spelled = named(SourceText(JAVA, "java"))
    assert spelled["Stack.pop"].startswith("public <T> T pop")
    assert spelled["Stack.pop"].endswith("};\n    }")
    assert spelled["Stack.Stack"] == "Stack() { }"
