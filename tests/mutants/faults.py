"""The faults that are put into a module: another comparison, a condition turned round, a line left out."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_SUMS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
# What these are told is for a reader of the log.
_LOGS = ("log", "warnings")
# Of a node, what is a type or stands above a definition.
_NOT_RUN = ("annotation", "returns", "decorator_list", "type_comment", "bases", "type_params")

_MAX_WORDS = 120


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one fault.

    ``key`` names it by the function and the words of the code, so that it stays when lines move. ``function``
    is the outermost function whose body holds the fault; empty: it acts at the import.
    """

    key: str
    line: int
    end_line: int
    function: str
    # Which place of the module, and which of the faults that fit there.
    place: int
    fault: int


def mutants(source: str) -> list[Mutant]:
    places = list(_places(ast.parse(source)))
    found: list[Mutant] = []
    seen: Counter[str] = Counter()
    for at in sorted(range(len(places)), key=lambda at: (places[at].node.lineno, at)):
        place = places[at]
        before, around = _words(place.node), _words(place.statement)
        for fault, new in enumerate(_faults(place)):
            change = f"{before} → {_words(new)}"
            key = f"{place.name}: {change}" if before == around else f"{place.name}: {around}: {change}"
            seen[key] += 1
            if seen[key] > 1:
                key += f" ({seen[key]})"
            found.append(Mutant(key, *place.lines, place.function, at, fault))
    return found


def with_fault(source: str, mutant: Mutant) -> ast.Module:
    """Return the module with this fault; each line keeps its number."""
    tree = ast.parse(source)
    place = list(_places(tree))[mutant.place]
    new = ast.copy_location(_faults(place)[mutant.fault], place.node)
    if place.at is None:
        setattr(place.holder, place.field, new)
    else:
        getattr(place.holder, place.field)[place.at] = new
    return ast.fix_missing_locations(tree)


@dataclass(slots=True)
class _Place:
    """A node that may be changed, and where it hangs."""

    node: ast.expr | ast.stmt
    holder: ast.AST
    field: str
    at: int | None
    name: str
    statement: ast.stmt
    function: str
    # Of the statement that holds it, a compound one's head alone.
    lines: tuple[int, int]
    # How often each name of the function gets a value.
    bound: Counter[str]


def _places(tree: ast.Module) -> Iterator[_Place]:
    nothing = ast.Pass(lineno=0)
    yield from _below(tree, _Place(nothing, tree, "", None, "module", nothing, "", (0, 0), Counter()))


def _below(holder: ast.AST, outer: _Place) -> Iterator[_Place]:
    """Yield the places below a node, those of a body with the names of its function."""
    for field, value in ast.iter_fields(holder):
        if field in _NOT_RUN:
            continue
        for at, node in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(node, ast.AST) or _is_for_readers(node):
                continue
            inner = _inside(outer, holder, field)
            if isinstance(node, ast.stmt):
                inner.statement, inner.lines = node, _head(node)
            if isinstance(node, ast.expr | ast.stmt):
                inner.node, inner.holder, inner.field = node, holder, field
                inner.at = at if isinstance(value, list) else None
                yield inner
            yield from _below(node, inner)


def _inside(outer: _Place, holder: ast.AST, field: str) -> _Place:
    inner = copy.copy(outer)
    if not isinstance(holder, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        return inner
    name = getattr(holder, "name", "<lambda>")
    if outer.node is holder and field in ("body", "args"):
        inner.name = name if outer.name == "module" else f"{outer.name}.{name}"
    if field == "body" and not isinstance(holder, ast.ClassDef):
        inner.bound = _bound(holder)
        inner.function = outer.function or inner.name
    return inner


def _bound(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Counter[str]:
    args = function.args
    named = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    found = Counter(arg.arg for arg in named if arg is not None)
    body = function.body if isinstance(function.body, list) else [function.body]
    for node in (each for stmt in body for each in ast.walk(stmt)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found[node.id] += 1
    return found


def _head(node: ast.stmt) -> tuple[int, int]:
    body = getattr(node, "body", None)
    if isinstance(node, ast.Match):
        return node.lineno, node.subject.end_lineno or node.lineno
    end = body[0].lineno - 1 if isinstance(body, list) and body else node.end_lineno
    return node.lineno, max(node.lineno, end or node.lineno)


def _is_for_readers(node: ast.AST) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr):
        return True
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.keyword) and node.arg == "hint":
        return True
    if not isinstance(node, ast.Expr):
        return False
    call = node.value.value if isinstance(node.value, ast.Await) else node.value
    if isinstance(call, ast.Constant):
        return True
    return isinstance(call, ast.Call) and ast.unparse(call.func).partition(".")[0] in _LOGS


def _words(node: ast.AST) -> str:
    words = ast.unparse(node).partition("\n")[0]
    return words if len(words) <= _MAX_WORDS else words[:_MAX_WORDS] + "…"


def _faults(place: _Place) -> list[ast.AST]:
    node = place.node
    if isinstance(node, ast.stmt):
        return _statement_faults(place, node)
    match node:
        case ast.Compare(ops=[kind, *others]):
            return [_with(node, ops=[_COMPARISONS[type(kind)](), *others])]
        case ast.BoolOp(op=op):
            return [_with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return [operand]
        case ast.BinOp(op=op) if type(op) in _SUMS:
            return [_with(node, op=_SUMS[type(op)]())]
        case ast.Constant(value=bool() as value):
            return [_with(node, value=not value)]
        case ast.Constant(value=int() | float() as value):
            return [_with(node, value=value + by) for by in ((1, -1) if value > 1 else (1,))]
        case ast.IfExp(test=test):
            return [_with(node, test=ast.UnaryOp(ast.Not(), test))] if _needs_turning(test) else []
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            parts = list(enumerate(node.generators))
            return [
                _with(
                    node, generators=[*node.generators[:at], _with(part, ifs=[]), *node.generators[at + 1 :]]
                )
                for at, part in parts
                if part.ifs
            ]
        case ast.Name(id=name) if name in _NAMES and place.field == "func":
            return [_with(node, id=_NAMES[name])]
        case ast.Slice(lower=lower, upper=upper):
            return [
                _with(node, **{name: None}) for name, bound in (("lower", lower), ("upper", upper)) if bound
            ]
    return []


def _statement_faults(place: _Place, node: ast.stmt) -> list[ast.AST]:
    match node:
        case ast.If(test=test) | ast.While(test=test):
            return [_with(node, test=ast.UnaryOp(ast.Not(), test))] if _needs_turning(test) else []
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            return [_with(node, value=ast.Constant(None))]
        case ast.Break():
            return [ast.Continue()]
        case ast.Continue():
            return [ast.Break()]
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Delete() | ast.Raise():
            return [ast.Pass()]
        case ast.Assign(targets=targets) if all(_is_left(target, place) for target in targets):
            return [ast.Pass()]
    return []


def _needs_turning(test: ast.expr) -> bool:
    """Say whether another fault of the condition does not turn it round already."""
    match test:
        case ast.UnaryOp(op=ast.Not()):
            return False
        case ast.Compare(ops=[op]):
            return isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE)
    return True


def _is_left(target: ast.expr, place: _Place) -> bool:
    """Say whether there is another value where this one is not assigned: else it is a mere NameError."""
    if isinstance(target, ast.Tuple):
        return all(_is_left(each, place) for each in target.elts)
    if isinstance(target, ast.Name):
        return place.bound[target.id] > 1
    return bool(place.function)


def _with(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new
