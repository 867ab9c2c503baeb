"""What in a notebook hangs on how fast the machine is, or on which notebook ran before in the same process.

Cells that only show and check are held to what holds for tests: they wait with `until`. What becomes code of the package may
pause in a loop, ask again and again, and kill what does not end."""
import ast
import json
import re
from typing import NamedTuple

from waiting import LIMIT

CLOCKS = {'monotonic', 'perf_counter', 'process_time', 'thread_time', 'time', 'times'}
TIMES = {'seconds', 'cost', 'took', 'ms', 'rate'}                     # columns and fields that hold what was measured


class Cell(NamedTuple):
    number: int
    exported: bool
    tree: ast.AST


def cells(path):
    "The code cells of a notebook"
    for i, c in enumerate(json.loads(path.read_text(encoding='utf-8'))['cells']):
        source = ''.join(c['source'])
        if c['cell_type'] == 'code': yield cell(source, i)


def cell(source, number=0):
    "A cell; commands of IPython's are left out"
    plain = re.sub(r'^(\s*)[%!].*', r'\1pass', source, flags=re.M)
    return Cell(number, bool(re.search(r'^#\|\s*export', source, re.M)), ast.parse(plain))


def faults(cells):
    "(number of the cell, what is wrong, the code) of a notebook"
    cells = list(cells)
    times = Times(c.tree for c in cells)
    for c in cells:
        above = {child: n for n in ast.walk(c.tree) for child in ast.iter_child_nodes(n)}
        for n in ast.walk(c.tree):
            if isinstance(n, (ast.Call, ast.FunctionDef, ast.BinOp)) and (why := wrong(n, list(around(n, above)), c.exported)): yield c.number, why, ast.unparse(n).partition('\n')[0]
        for statement in c.tree.body:
            for n in ast.walk(statement):
                if any(map(times.told, compared(n))): yield c.number, 'asserts on the clock', ast.unparse(n)
            if not isinstance(statement, (ast.FunctionDef, ast.ClassDef)): times.learn(statement)


# --- waiting and warnings ------------------------------------------------------------------------------------------

def called(n): return getattr(n.func, 'attr', getattr(n.func, 'id', '')) if isinstance(n, ast.Call) else ''


def around(n, above):
    "What a piece of code stands in, from the inside out"
    while n in above: yield (n := above[n])


def wrong(n, outer, exported):
    "What is wrong with a piece of code; nothing, mostly"
    name, loops = called(n), [o for o in outer if isinstance(o, (ast.While, ast.For))]
    pauses = exported and any(isinstance(o, ast.While) or '.kill()' in ast.unparse(o) for o in loops)
    caught = [o for o in outer if isinstance(o, ast.With) and 'catch_warnings' in ''.join(ast.unparse(i) for i in o.items)]
    if name == 'sleep' and not (exported and loops): return 'sleeps, and hopes'
    if name == 'Timer' and not exported: return 'races with a timer'
    if any(map(short, limits(n))) and not pauses: return 'gives up on a slow machine'
    if not exported and deadline(n): return 'has a limit of its own'
    if name in ('simplefilter', 'filterwarnings', 'resetwarnings') and not caught: return 'changes warnings for the whole process'
    if name == 'test_warns' or name == 'catch_warnings' and listens(n, outer[1]): return 'hears a warning only if nobody has switched it off'


def short(n):
    "Is it a number of seconds that a slow machine may need? None at all is no limit, but a question."
    return isinstance(n, ast.Constant) and isinstance(n.value, (int, float)) and 0 < n.value < LIMIT


def limits(n):
    "What a call, or a function by itself, is told to wait at most"
    if isinstance(n, ast.BinOp): return []
    waits = any(o in (called(n) or getattr(n, 'name', '')) for o in ('wait', 'until', 'join', 'set_default_timeout'))
    def limit(name): return 'timeout' in (name or '') or waits and name == 'seconds'
    if isinstance(n, ast.Call): return [k.value for k in n.keywords if limit(k.arg)] + n.args*waits
    given = [*zip(reversed(n.args.args), reversed(n.args.defaults)), *zip(n.args.kwonlyargs, n.args.kw_defaults)]
    return [v for a, v in given if limit(a.arg)]


def deadline(n):
    "The time in a moment"
    return isinstance(n, ast.BinOp) and isinstance(n.op, ast.Add) and called(n.left) in CLOCKS and short(n.right)


def listens(n, block):
    "Does a block look at the warnings that it catches, without asking for all of them?"
    named = [i for i in getattr(block, 'items', ()) if i.context_expr is n and i.optional_vars]
    return named and 'simplefilter' not in ast.unparse(block)


# --- what was measured ---------------------------------------------------------------------------------------------

class Times:
    "What gives a time in a notebook: functions, and the names that hold one just now"
    def __init__(self, trees):
        self.timers, self.names, trees = set(), set(), list(trees)
        functions = [f for tree in trees for f in ast.walk(tree) if isinstance(f, ast.FunctionDef)]
        known = None
        while known != len(self.timers):                              # who calls them gives one too
            known = len(self.timers)
            for f in functions:
                self.names = set()
                self.learn(f)
                if any(isinstance(o, ast.Return) and o.value and self.told(o.value) for o in ast.walk(f)): self.timers.add(f.name)
            for s in (s for tree in trees for s in tree.body if isinstance(s, ast.Assign)): self.learn(s)
        self.names = set()

    def told(self, e):
        "Is a value what a clock said? What was decided by it is not, nor is another column of a table."
        if isinstance(e, ast.Compare): return False
        if isinstance(e, ast.Name): return e.id in self.names
        if called(e) in self.timers: return True
        parts = [*ast.iter_child_nodes(e)]
        if isinstance(e, ast.Attribute):
            if e.attr == 'seconds' or e.attr in CLOCKS and ast.unparse(e.value) in ('time', 'os'): return True
            if e.attr not in TIMES: return False
        if isinstance(e, ast.Subscript) and ast.unparse(e.slice) == "'seconds'": return True
        if isinstance(e, ast.Call) and isinstance(e.func, ast.Attribute): parts.append(e.func.value)       # a method of it
        return any(map(self.told, parts))

    def learn(self, tree):
        "Note what holds a time after some code, and what no longer does"
        for n in ast.walk(tree):
            if not isinstance(n, (ast.Assign, ast.AugAssign, ast.NamedExpr)): continue
            for target, value in pairs(n):
                now = self.told(value)
                if isinstance(target, ast.Attribute) and isinstance(value, ast.Name) and value.id in self.timers: self.timers.add(target.attr)   # a method
                for t in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if isinstance(t, ast.Name) and (now or not isinstance(n, ast.AugAssign)): (self.names.add if now else self.names.discard)(t.id)
                    if isinstance(t, ast.Subscript) and isinstance(t.value, ast.Name) and now: self.names.add(t.value.id)


def pairs(n):
    "(target, value) of an assignment, piece by piece"
    for t in getattr(n, 'targets', None) or [n.target]:
        if isinstance(t, ast.Tuple) and isinstance(n.value, ast.Tuple) and len(t.elts) == len(n.value.elts): yield from zip(t.elts, n.value.elts)
        else: yield t, n.value


def compared(n):
    "Values whose size an assertion depends on; that a time is not negative may be asserted"
    if called(n) == 'test_close': yield from n.args[:2]
    for c in ast.walk(n.test) if isinstance(n, ast.Assert) else ():
        sides = [c.left, *c.comparators] if isinstance(c, ast.Compare) else []
        for a, op, b in zip(sides, getattr(c, 'ops', ()), sides[1:]):
            if not (isinstance(op, ast.GtE) and ast.unparse(b) == '0') and isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)): yield from (a, b)
